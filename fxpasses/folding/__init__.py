"""What several passes fold into layers: maps that scale and shift channel by channel."""
