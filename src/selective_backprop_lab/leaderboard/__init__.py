"""The leaderboard: every method on the same workloads, tuned alike, with the same budgets and seeds."""
