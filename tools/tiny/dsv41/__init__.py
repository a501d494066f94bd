"""The trainer's own deepseek_v41 text model, its DSpark drafter, and what is trained into them."""
