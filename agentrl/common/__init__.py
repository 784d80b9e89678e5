"""What every part uses and nothing of ours stands behind: processes, threads, imports, texts that are not trusted."""
