"""The behaviours that the engine must have, each with an id that the tests of it cite.

    @covers("run.resume.after_crash")
    async def test_a_run_cut_after_any_fact_…

`tests/unit/test_requirements.py` holds both directions: every id is covered by a test that is collected, and
every id that a test cites is in this list. `PENDING` names the ids whose test is still to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])

REQUIRED: Mapping[str, str] = {
    # the log
    "log.append.conflict": "An append after another sequence than the aggregate's last is refused and stores nothing.",
    "log.append.atomic": "Facts that belong together are all stored or none, also over several aggregates.",
    "log.append.lost_ack": "An append whose answer was lost is found again, stored once, and told from a conflict.",
    "log.append.together": "Writers at the same time share commits, lose nothing, and cannot fail each other.",
    "log.append.outage": "Acknowledged facts survive a killed server, and appends wait for it.",
    "log.read.order": "Facts are read back whole and in order from any sequence, and one by one by their sequence.",
    "log.follow.no_gap": "A follower gets history and what comes, each fact once, through a cut connection too.",
    "log.follow.whole": "A consumer that missed something, or may have, is given up and begun anew behind what was read.",
    "bus.wire": "What the server sends is read the same however the network cuts it, and what is sent adds no header.",
    "log.envelope.cloudevents": "A fact travels as a CloudEvents 1.0 message with its version and its trace.",
    "log.versions.golden": "Every version of every event that was ever written is read by today's code.",
    "log.unreadable": "A message that cannot be read stops no follower and is no silent hole.",
    "blobs.by_digest": "Content of any size comes back byte for byte, is stored once, and is never returned damaged.",
    # durable work
    "inbox.once": "A request goes to one process, and what was answered is not given out again.",
    "inbox.recover": "A restarted process takes up at once what it had not answered; what a dead one held goes to a living one.",
    "inbox.poison": "A request that nobody can read or answer ends after bounded tries, with a dead letter.",
    # runs
    "run.complete": "A scripted run completes, and its effects happen once.",
    "run.resume.after_crash": "A run cut after any of its facts and resumed ends as the undisturbed one, with nothing finished done again.",
    "run.resume.repeatedly": "A run that is cut several times resumes each time.",
    "run.resume.within_5_s": "After a kill another process or the restarted one goes on within 5 s at the 95th percentile.",
    "run.verify": "A finished run is verified from its log alone.",
    "run.verify.names_edit": "An edited fact of a log is reported by its sequence.",
    "run.parks_on_bug": "A bug in the engine's code parks the run, and mended code goes on with it.",
    "run.non_determinism": "Code that asks for something else than the log holds is stopped with both sides.",
    "run.poison": "A run that only ever kills the engine is ended with that reason.",
    "run.cancel": "A cancelled run stops and says so.",
    "run.deadline": "A run whose wall time is spent ends by its deadline.",
    "run.budget": "A hard budget is reserved before a call, never exceeded, and warned of before.",
    "run.pins": "A run keeps the digests of template, prompts and tools, and the engine's version, that it was submitted under.",
    "run.turn_cap": "An agent that never answers is ended by the cap on its turns.",
    "run.loop_guard": "A call that is repeated with the same result is answered, and then ends the loop.",
    "run.empty_turn": "An empty answer is asked again, and then fails the run.",
    "run.owed_files": "Files that the request names or the node owes are held to, with two repairs, before the run may end.",
    "run.timer": "A wait is a fact and so is its end, so a replay takes the same branch.",
    "run.prompt_rebuilt": "The exact prompt of a model call is rebuilt from the log, and equals what was sent.",
    "run.long_conversation": "A conversation of 400 calls costs the log the same for each, and its last prompt is rebuilt byte for byte.",
    # small models
    "model.guided": "A model that cannot call tools is asked action by action under a schema of what may be done now.",
    "model.reask": "A turn that calls no tool though one is due is asked once more under a schema.",
    "model.salvage": "Calls that a model wrote into its content are found in every form that models write them.",
    "model.salvage.cut": "A call that is not whole is not run.",
    "model.repair": "Arguments with a slip are mended, and nothing is made up.",
    # the scheduler
    "llm.wire": "Every backend sends and reads the wire format as a real llama-server does.",
    "llm.stream_broken": "A stream that breaks, lies or stays silent is a fault that keeps what had come.",
    "llm.retry_once": "A dropped connection is retried once.",
    "llm.server_fails": "A server that answers 500s ends the run with the server's words.",
    "llm.garbage": "A server that sends garbage, half a stream or no answer ends the run with a reason, inside its budgets.",
    "llm.detect": "A server on a usual port is found, and something else on that port is not taken for one.",
    "llm.none": "Without a server and without a local model a run fails in seconds and says what to do.",
    # leases of the cards' memory
    "lease.order": "A run goes first, then an interactive client, then batch work; a run is never displaced (S8).",
    "lease.interactive": "A chat client uses what is loaded while nothing else uses the slot, and ends at once for a run (S8).",
    "lease.grace": "Batch work is asked to release, and ended for a run only after its grace (S8).",
    "lease.beside_run": "Batch work waits beside a run on its card unless its model is there and it needs no service (S8).",
    "lease.queue": "Every request is granted, refused or expired, and whoever waits knows why and its position (S8, S21).",
    "lease.plan": "A load is planned against what the card holds, and what cannot fit is refused with the arithmetic (S7).",
    "lease.protected": "The embedding model, foreign models, other leases' models and what loads or answers are never evicted (S7, S21).",
    "lease.loads": "Loads of a slot come one after another, each model once; loads by others are awaited, stacked copies unloaded (S5).",
    "lease.unknown": "A slot that does not say what it holds is never taken for empty, and nothing is done there (S5).",
    "lease.context": "One context size belongs to a loaded model, and more is one planned reload (S7).",
    "lease.holds": "A card is held for something outside the engine once runs are over, and runs wait for it (S9).",
    "lease.restore": "A slot gets its standard set back after its last release and delay; a failed restore is tried three times (S10).",
    "lease.group": "A run's slots come together, on one card one after another; a refusal ends all, and all end before a restore (S11).",
    "lease.resident_run": "A run that names no model takes what is loaded, and loads and preempts nothing (S12).",
    "lease.turns": "Models of one lease that do not fit together take turns in the memory that is set aside for the largest (S7).",
    "lease.expiry": "Each lease has its own expiry, which nobody else's renewals move (S8).",
    "lease.bad_input": "A wrong lease request is refused by the field that is wrong, and one key makes one lease (S14).",
    "lease.fold": "The same facts make the same state, and a log cut after any fact goes on to the same end (S8).",
    "lease.office": "A decision is stored before it is carried out; a scheduler killed after any of its facts leaves nothing undone (S8).",
    "lease.runs": "A run has its lease before its first call on a slot, models are shared in few swaps, and its end ends it all (S2, S3).",
    "lease.reload": "A server that says that a model is not loaded is looked at; what is gone is loaded again, and asked again (S2).",
    "lease.mixed": "Teams, a chat client and a batch job at once on shared cards keep every rule of the arbiter (S8, S21).",
    "lease.api": "Who asks for a lease from outside is told its place, its grant, and that its place is wanted (S14, S21).",
    "lease.effects": "What a decision asks of the world is read from its facts, and what is owed after a crash from the state (S8).",
    "lease.verify": "The rules of leases are checked on any log, from its facts alone (S22).",
    "lease.usage": "A card's wall time is accounted for by run and agent: answering, swapping, held and idle (S23).",
    "slots.catalogue": "Slots stand in one order, with their card, alternates and standard set; hidden ones are used when named (S4).",
    "slots.checks": "Settings of slots that do not fit together are logged at boot under their tag, and the start goes on (S4).",
    "slots.reload": "A changed file of settings is taken up while running, what cannot be is named, and a wrong one changes nothing (S4).",
    "standby.one": "Of several schedulers one decides, and another begins only after the first has given up, whatever stops when.",
    "standby.takes_over": "A killed scheduler's calls are answered by the one that stood by, within 10 s, with no load asked twice.",
    "standby.fenced": "A scheduler that was stopped and relieved decides nothing when it wakes, and stands by.",
    "slots.roles": "A call that belongs to no node has its slot, and an unpinned role leaves a slot that is down (S16).",
    "slots.nodes": "A node that names only a model goes to the default slot if that is for its model, and pins follow the nodes (S3, S12).",
    "order.whole": "Every call that was asked goes once or is refused with the reason; none is lost or doubled.",
    "order.fair": "Calls are grouped by model with the swaps of plain grouping, and no call of a model waits without bound.",
    "order.low": "Background calls wait for normal ones, but not for ever.",
    "order.adjacent": "Calls of one agent stay adjacent for its cached prompt, within bounds.",
    "order.pins": "A pinned call is never moved: its slot answers it, or it fails with the reason.",
    "order.model_in_use": "A model that is loading or answering is never replaced.",
    "order.deterministic": "The same facts lead to the same decisions.",
    "order.places": "Whoever waits is told its position, the holder, and why it waits.",
    "relay.resolve": "A chat client is served where its model is loaded, in slot order; a slot that is silent lists nothing (S17).",
    "relay.refuses": "Where a run or a batch job holds every copy, the client gets the router's own 400, and nothing is loaded (S17).",
    "relay.leases": "A chat client holds one interactive lease a slot, kept while it is used and given back when it is not (S17).",
    "relay.copies": "Chat clients use their own copy of a model where there is one, and the base model where that cannot serve (S17).",
    "relay.untouched": "What a chat client says and gets passes through untouched, as a stream and whole (S17).",
    "relay.stops": "A client that leaves, and a run that takes the card, end the work upstream (S17).",
    # the cards
    "cards.read": "What a machine tells of its cards is read, each figure with its source (S15).",
    "cards.unknown": "What a machine does not tell of a card is unknown, never zero, and no error (S15).",
    "cards.processes": "Who holds a card is told by process, each open file counted once (S15).",
    "cards.match": "A configured card is found by address, node, place or name, and a miss says what there is (S15).",
    "cards.poll": "Changes of the cards' memory are told, and a driver that hangs holds up nothing (S15).",
    "cards.freed": "After an unload the memory is waited for within a bound, and planned with as it is measured then (S15, S7).",
    "decisions.answer": "A decision is one of the caller's options: the model's where it is readable and sure, else the rule's (S19).",
    "decisions.resident": "A decision asks a model that is loaded already, under a batch lease, and loads and unloads nothing (S19).",
    "decisions.logged": "Each decision that the layer makes is one row, and writing it neither delays nor fails it (S19).",
    "decisions.off": "Off, failing or late, the decision layer costs its caller a bounded time, and the caller's rule decides (S19).",
    # decisions by a small question
    # tools
    "tool.at_most_once": "A tool call that may not be repeated runs at most once, whatever crashes, and the model is told.",
    "tool.layers": "A tool outside an agent's servers or list is denied by the layer that holds it.",
    "tool.paths": "No path leaves the workspace: neither by steps, absolute names, links, devices nor by a swap in between.",
    "tool.paths.words": "A refused path is answered with what to do instead, the same whether the place exists or not.",
    "tool.arguments": "A wrong call is answered with one sentence and a right call.",
    "tool.changes": "Files that a call changed are recorded with what stood there before.",
    "tool.search_bounded": "A search pattern that would never end is stopped.",
    "shell.bounded": "A command ends at its bound with everything that it started, in bounded memory.",
    "shell.once": "A command runs once however often it is asked for.",
    "shell.environment": "A command sees nothing of the engine's own environment.",
    "shell.loopback_only": "The local runtime refuses an API that strangers can reach.",
    # the gateway
    "api.submit": "A submission is one atomic pair of facts; the answer comes at once, or when the run has ended.",
    "api.submit.idempotent": "A key makes one run, also from two gateways at once.",
    "api.files": "A run may begin with files, which are in its workspace before its first tool call, once, through any crash.",
    "api.cancel": "A run, or all runs of a project, can be asked to stop, once.",
    "api.status": "A run is shown by its one fold, with its build log and the prompts of its calls.",
    "api.events": "A run's facts come as server-sent events: history first, then what happens, to its end.",
    "api.events.resume": "Last-Event-ID goes on without gap or double, after a restart of the gateway too.",
    "api.events.slow_reader": "A reader too slow for its queue loses nothing.",
    "api.problems": "Bad input is 4xx problem+json that names the field, the position or the limit.",
    "api.problems.bug": "A bug of the gateway shows no inner detail.",
    "api.token": "With a token everything but health needs it; without one only this machine is answered.",
    "api.schemas": "Every type of fact has a published schema that its events fit.",
    "api.subscriber": "An outside subscriber on plain NATS sees runs complete.",
    # read models
    "recorder.exactly_once": "Rows and position are stored together, through kills, restarts and two writers.",
    "recorder.projections": "Runs, steps, conversation, tool audit and model calls are in the tables.",
    "recorder.rebuild": "Tables rebuilt from the first fact equal those that followed live.",
    "recorder.stuck": "A projection that fails is named and tried again while the others go on.",
    "recorder.outage": "The recorder outlives its database and the log server.",
    # the embedded stack
    "stack.start": "Processes start in order, are ready when they say so, and are started again when they end.",
    "stack.stop": "A stopped engine leaves no process and no lock, and the next start finds its data.",
    "stack.killed": "An engine that is killed leaves no process and no lock, and starts again.",
    "stack.ports": "A taken port is replaced and said.",
    "stack.fsync": "The shipped log server flushes every fact before it acknowledges.",
    "stack.config": "A wrong setting stops the start and is named.",
    "stack.doctor": "The doctor names what keeps the engine from starting, and what to do.",
    "stack.model_file": "The local model is assembled once from its parts and checked against its release.",
    "stack.quiet": "No process makes a connection that was not configured.",
    "stack.trace": "One trace follows a run through every process.",
    "stack.full_disk": "A full disk stops nothing for good: what was acknowledged is there when there is room again.",
    "stack.nats_away": "A stopped NATS makes the services wait, and they go on.",
    "stack.postgres_away": "A stopped PostgreSQL makes the recorder wait, and runs go on meanwhile.",
    # the whole
    "demo.scripted": "The demo with a scripted model does its task in seconds and says that the model is scripted.",
    "demo.real_model": "The demo's task is done by the real local model.",
    "demo.checked": "The demo believes the file and not the model.",
    "chaos.kills": "Random kills repeat no effect and lose no acknowledged fact.",
    "cli.verbs": "The verbs start, list, show, cancel, export and replay a run.",
    "cli.live": "A run is shown as it happens, and what is waited for is said.",
    "evals.checks": "The check of every evaluation task tells right workspaces from wrong ones.",
    "evals.report": "An evaluation judges runs by the workspace they leave, and says of each failure what kind it is.",
    "bench.figures": "Figures are written with their conditions, each beside its floor.",
    "rooms.walls": "Services do not import each other, and what is pure imports no driver, clock, chance or environment.",
}

PENDING: Mapping[str, str] = {}


def covers(*ids: str) -> Callable[[Test], Test]:
    """Says which required behaviours a test is about; the test itself stays as it is.

    Raises:
        ValueError: an id is not in the list.
    """
    unknown = [each for each in ids if each not in REQUIRED]
    if unknown or not ids:
        raise ValueError(f"no required behaviour is called {unknown or ids!r}: add it to tests/requirements.py")
    return lambda test: test
