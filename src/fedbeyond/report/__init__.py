"""What came of it: tables of methods and unseen domains, made from result lines."""
