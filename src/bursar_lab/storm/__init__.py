"""A fleet, its users and its bad nights, run through the public door.

Real processes only: `bursar serve` nodes on a real engine, clients of the public API, an operator who
uses the command line, a nemesis that kills, pauses, cuts and spoils. Everything that is asked and told
is written to a folder; `checker` decides from that folder alone, without the product's code.

    plan        what a run does and when, drawn by its seed before it begins
    policies    the texts that are applied        operations   what clients ask for
    settings    terms drawn from the policy's own schema
    places      loopback, or namespaces of the run's own
    engines     the store                         nodes        `bursar serve`
    clients     client processes                  operator     what people do with a fleet
    nemesis     what goes wrong                   run          all of it together
    shrink      less and less of it, while it still goes wrong
"""
