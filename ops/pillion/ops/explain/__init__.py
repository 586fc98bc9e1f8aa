"""`pillion explain`: why a request took so long, as its gateway tells it."""
