"""Flow control: registers, queues, forks, joins, width converters and arbiters of streams."""
