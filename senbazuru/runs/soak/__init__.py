"""The MMU under random requests and a memory that errs, a million requests long."""
