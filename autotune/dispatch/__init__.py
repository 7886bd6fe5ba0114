"""How a dispatcher is made: layers by configs, the few worth keeping, the rule that loses least."""
