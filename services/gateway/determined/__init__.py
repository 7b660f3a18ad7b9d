"""The REST API of Determined, as far as its published client (0.38) asks for it: the one place that knows it. A
middleware (`services/gateway/determined/door.py`) sends it the requests that carry a session of Determined's login,
before our own API sees them.

Each module maps one kind of object to Determined's JSON and lists its routes in ROUTES. Everything is answered by the
same use cases as our own API. An agent is "agent", a trial a "task", an experiment a "job", and ids of trials are
numbers (gangline.domain.id.number_of).

Start: determined_app.py
"""
