"""A whole cluster on one machine: `gangline up` and `gangline down`. Linux only; starts the services by their console
entry points and never imports them."""
