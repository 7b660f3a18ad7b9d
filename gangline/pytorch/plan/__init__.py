"""Plans how a trial would be spread over slots: memory and time of every strategy, and the choice among them."""
