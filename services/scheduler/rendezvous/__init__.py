"""How the members of a gang meet: the pure state machine, the pure choice of a network, and the hall that runs them."""
