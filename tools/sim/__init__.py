"""The lane host in virtual time: costs, the world around it, scenarios, figures and pictures."""
