"""Other people's clients against a real stack, each in an environment that has nothing of ours."""
