"""fxpasses: graph-transformation compiler passes on torch.fx, explicit, verified and explained."""
