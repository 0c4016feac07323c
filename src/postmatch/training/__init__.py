"""The only training loop, its schedules and its losses."""
