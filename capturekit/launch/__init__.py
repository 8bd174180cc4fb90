"""The things that one launch runs and keeps alive: the plan, the graph's memory, arrays from outside, checks of host
reads."""
