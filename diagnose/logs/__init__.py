"""What failed jobs left: reading, and finding the lines that matter."""
