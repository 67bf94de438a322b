"""A real SGLang server: start, attach to, speak to and stop one."""
