"""What a job takes and costs on a fleet that loses machines: closed forms, Monte Carlo, replays, policies."""
