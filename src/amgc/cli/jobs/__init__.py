"""Many runs at once: the cells of a comparison, a loop that starts them in turn, and the places where they can run."""
