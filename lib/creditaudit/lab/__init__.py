"""Where people try things: the playground, a credit rule of their own, JupyterLab on copies of the notebooks."""
