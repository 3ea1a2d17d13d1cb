"""Plans: which bytes take which path, what bounds them, and how far they are from the exact optimum."""
