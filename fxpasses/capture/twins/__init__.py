"""Copies of module trees and of graphs that share what can be shared and rebind the rest."""
