"""The paper's evaluation, figure by figure and table by table, with its baselines and ours."""
