"""How near a simulation comes to the machine: the same arrivals to both."""
