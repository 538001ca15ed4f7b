"""The path of a message through the node, stage by stage."""
