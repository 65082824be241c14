"""What phases take away for a block at a time, and what keeps the user's training state and files safe meanwhile."""
