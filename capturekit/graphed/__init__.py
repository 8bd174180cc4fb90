"""``@ck.graphed``: the decorator, its variants, what a call may depend on, slots for arguments and results."""
