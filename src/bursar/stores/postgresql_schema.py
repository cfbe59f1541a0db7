"""The tables and functions of a PostgreSQL store, and how they come to be there.

    head        one row: the revision, the schema's number, a name for the whole. Every change locks
                it first, so that changes come one after another, whoever makes them
    nodes       one row a node
    sessions    who is alive: a count of beats, and the time without one after which it is over.
                No clock is in the database: whoever looks counts that time on its own
    changes     one row a commit with the paths that it touched, for watches. Only the newest stay: a
                reader that fell behind further must assume that everything changed

`apply` does the changes of several callers in one statement: a savepoint for each, so that one that
fails undoes itself alone, one commit and one notice for all. What operations do is `draft`'s, told in
PL/pgSQL; one suite of tests holds both to it. A statement of its own commit is also what keeps a
stopped client from holding the lock: nothing of a transaction is left to send once it has begun.

`STEPS` lay the schema out; step N takes a schema N-1 to N. Whoever opens the store does what is
missing, under a lock.
"""

from __future__ import annotations

from typing import Any

from bursar.errors import StoreError

CHANGES_KEPT = 4096
NOTICE_MAX_BYTES = 7800
"""PostgreSQL's own bound is 8,000. Of a longer list of paths the notice says only that there is one."""

FAILED = "BUR01"

_TABLES = """
CREATE TABLE {s}.head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), schema integer NOT NULL,
    revision bigint NOT NULL, uuid uuid NOT NULL DEFAULT gen_random_uuid()
);
CREATE TABLE {s}.nodes (
    path text COLLATE "C" PRIMARY KEY, parent text COLLATE "C" NOT NULL, data bytea NOT NULL,
    version bigint NOT NULL, created bigint NOT NULL, modified bigint NOT NULL, owner bigint NOT NULL,
    children integer NOT NULL, counter bigint NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX nodes_parent ON {s}.nodes (parent, path);
CREATE INDEX nodes_owner ON {s}.nodes (owner) WHERE owner <> 0;
CREATE TABLE {s}.sessions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, password bytea NOT NULL,
    timeout_ms bigint NOT NULL, beats bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE TABLE {s}.changes (
    revision bigint PRIMARY KEY, after bigint NOT NULL, paths text NOT NULL
);
INSERT INTO {s}.head (schema, revision) VALUES (1, 1);
INSERT INTO {s}.nodes VALUES ('/', '', '', 0, 1, 1, 0, 0, 0);

CREATE FUNCTION {s}.tell(base bigint, now bigint, touched text[], ended bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    paths text := array_to_string(touched, chr(10));
    line text := base || ' ' || now || ' ' || ended;
BEGIN
    IF now <> base THEN
        UPDATE {s}.head SET revision = now;
        INSERT INTO {s}.changes VALUES (now, base, paths);
        IF now / 256 <> base / 256 THEN
            DELETE FROM {s}.changes c WHERE c.revision <= now - {kept};
        END IF;
    END IF;
    PERFORM pg_notify('{channel}', CASE WHEN octet_length(paths) <= {notice_max}
        THEN line || chr(10) || paths ELSE line END);
END $$;

CREATE FUNCTION {s}.fail(why text, number bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '{failed}', MESSAGE = why, DETAIL = coalesce(number::text, '');
END $$;

CREATE FUNCTION {s}.apply(
    me bigint, starts integer[], kinds smallint[], paths text[], parents text[], datas bytea[],
    versions bigint[], flags smallint[]
) RETURNS TABLE (
    change integer, at integer, what text, version bigint, created bigint, modified bigint, owner bigint,
    children integer
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    base bigint; now bigint; touched text[]; kept text[]; p text; up text; v bigint; num bigint;
    kind smallint; node {s}.nodes;
BEGIN
    SELECT h.revision INTO base FROM {s}.head h FOR UPDATE;
    PERFORM 1 FROM {s}.sessions s WHERE s.id = me;
    IF NOT FOUND THEN
        change := -1; RETURN NEXT; RETURN;
    END IF;
    now := base;
    touched := ARRAY[]::text[];
    FOR nth IN 1 .. cardinality(starts) - 1 LOOP
        kept := touched;
        change := nth - 1;
        BEGIN
            now := now + 1;
            FOR i IN starts[nth] + 1 .. starts[nth + 1] LOOP
                at := i - starts[nth] - 1;
                kind := kinds[i]; p := paths[i]; up := parents[i]; v := versions[i];
                IF kind = 1 THEN
                    num := 0;
                    UPDATE {s}.nodes n SET children = n.children + 1, counter = n.counter + (flags[i] >> 1)
                        WHERE n.path = up AND n.owner = 0 RETURNING n.counter INTO num;
                    IF NOT FOUND THEN
                        PERFORM 1 FROM {s}.nodes n WHERE n.path = up;
                        PERFORM {s}.fail(CASE WHEN FOUND THEN 'ephemeral' ELSE 'parent' END);
                    END IF;
                    IF flags[i] >= 2 THEN
                        IF num > 2147483648 THEN
                            PERFORM {s}.fail('counter', num);
                        END IF;
                        p := p || lpad((num - 1)::text, 10, '0');
                        what := p; RETURN NEXT;
                    END IF;
                    INSERT INTO {s}.nodes VALUES (p, up, datas[i], 0, now, now,
                        CASE WHEN flags[i] & 1 = 1 THEN me ELSE 0 END, 0, 0) ON CONFLICT DO NOTHING;
                    IF NOT FOUND THEN
                        PERFORM {s}.fail('exists');
                    END IF;
                    touched := touched || p || up;
                ELSIF kind = 2 THEN
                    UPDATE {s}.nodes n SET data = datas[i], version = n.version + 1, modified = now
                        WHERE n.path = p AND (v IS NULL OR n.version = v) RETURNING n.* INTO node;
                    IF NOT FOUND THEN
                        SELECT n.version INTO num FROM {s}.nodes n WHERE n.path = p;
                        PERFORM {s}.fail(CASE WHEN FOUND THEN 'version' ELSE 'missing' END, num);
                    END IF;
                    what := NULL; version := node.version; created := node.created; modified := node.modified;
                    owner := node.owner; children := node.children;
                    RETURN NEXT;
                    touched := touched || p;
                ELSIF kind = 3 THEN
                    DELETE FROM {s}.nodes n
                        WHERE n.path = p AND n.children = 0 AND (v IS NULL OR n.version = v);
                    IF NOT FOUND THEN
                        SELECT * INTO node FROM {s}.nodes n WHERE n.path = p;
                        IF NOT FOUND THEN
                            PERFORM {s}.fail('missing');
                        ELSIF node.version <> v THEN
                            PERFORM {s}.fail('version', node.version);
                        END IF;
                        PERFORM {s}.fail('children', node.children);
                    END IF;
                    UPDATE {s}.nodes n SET children = n.children - 1 WHERE n.path = up;
                    touched := touched || p || up;
                ELSIF kind = 4 THEN
                    SELECT n.version INTO num FROM {s}.nodes n WHERE n.path = p;
                    IF NOT FOUND THEN
                        PERFORM {s}.fail('missing');
                    ELSIF num <> v THEN
                        PERFORM {s}.fail('version', num);
                    END IF;
                ELSE
                    PERFORM 1 FROM {s}.nodes n WHERE n.path = up;
                    IF NOT FOUND THEN
                        PERFORM {s}.fail('parent');
                    END IF;
                    PERFORM 1 FROM {s}.nodes n WHERE n.path = p;
                    IF FOUND THEN
                        PERFORM {s}.fail('exists');
                    END IF;
                END IF;
            END LOOP;
            IF cardinality(touched) = cardinality(kept) THEN
                now := now - 1;
            END IF;
        EXCEPTION WHEN SQLSTATE '{failed}' THEN
            DECLARE why text; number text;
            BEGIN
                GET STACKED DIAGNOSTICS why = MESSAGE_TEXT, number = PG_EXCEPTION_DETAIL;
                what := '!' || why; version := nullif(number, '')::bigint;
                RETURN NEXT;
            END;
            touched := kept;
            now := now - 1;
        END;
    END LOOP;
    IF now <> base THEN
        PERFORM {s}.tell(base, now, touched, 0);
    END IF;
END $$;

CREATE FUNCTION {s}.end_session(which bigint, word bytea, seen bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    base bigint; touched text[];
BEGIN
    SELECT h.revision INTO base FROM {s}.head h FOR UPDATE;
    DELETE FROM {s}.sessions s WHERE s.id = which
        AND (word IS NULL OR s.password = word) AND (seen IS NULL OR s.beats = seen);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH gone AS (DELETE FROM {s}.nodes n WHERE n.owner = which RETURNING n.path, n.parent),
        lost AS (SELECT g.parent, count(*) AS number FROM gone g GROUP BY g.parent),
        counted AS (UPDATE {s}.nodes n SET children = n.children - l.number FROM lost l
            WHERE n.path = l.parent)
    SELECT coalesce(array_agg(t.path), ARRAY[]::text[]) INTO touched
        FROM (SELECT g.path FROM gone g UNION SELECT l.parent FROM lost l) t;
    PERFORM {s}.tell(base, base + (cardinality(touched) > 0)::int, touched, which);
    RETURN true;
END $$;
"""

STEPS = (_TABLES,)

READ = """
SELECT EXISTS (SELECT 1 FROM {s}.sessions s WHERE s.id = $1) AS alive,
    (SELECT h.revision FROM {s}.head h) AS revision,
    n.version, n.created, n.modified, n.owner, n.children,
    CASE WHEN w.kind = 1 THEN n.data END AS data,
    CASE WHEN w.kind = 2 THEN ARRAY(
        SELECT c.path FROM {s}.nodes c WHERE c.parent = w.path ORDER BY c.path) END AS names
FROM unnest($2::text[], $3::smallint[]) WITH ORDINALITY w(path, kind, i)
LEFT JOIN LATERAL (SELECT * FROM {s}.nodes n WHERE n.path = w.path LIMIT 1) n ON true ORDER BY w.i
"""
APPLY = "SELECT * FROM {s}.apply($1, $2, $3, $4, $5, $6, $7, $8)"
BEAT = "UPDATE {s}.sessions SET beats = beats + 1 WHERE id = $1"
OPEN = "INSERT INTO {s}.sessions (name, password, timeout_ms) VALUES ($1, $2, $3) RETURNING id"
END = "SELECT {s}.end_session($1, $2, $3)"
SWEEP = """
SELECT s.id, s.beats, s.timeout_ms, h.revision FROM {s}.head h LEFT JOIN {s}.sessions s ON true ORDER BY s.id
"""
CHANGES = "SELECT revision, after, paths FROM {s}.changes WHERE revision > $1 ORDER BY revision"


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def channel_of(schema: str) -> str:
    """Notices of one schema; `schema` has no quotes in it."""
    return f"bursar:{schema}"


async def prepare(connection: Any, schema: str, steps: tuple[str, ...] = STEPS) -> None:
    """Lay out the schema, or what is missing of it. Of several at once one does it."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", channel_of(schema))
        number = await _read_number(connection, schema)
        if number > len(steps):
            raise StoreError(
                f"the schema {schema} is of form {number}, this bursar knows {len(steps)}: use the version "
                "of bursar that made it, or another schema"
            )
        for step in steps[number:]:
            await connection.execute(_fill(step, schema))
        if number < len(steps):
            await connection.execute(f"UPDATE {quote(schema)}.head SET schema = {len(steps)}")


async def _read_number(connection: Any, schema: str) -> int:
    """The form of the schema; 0 for an empty one, which is made if it is missing."""
    if await connection.fetchval("SELECT to_regnamespace($1)", quote(schema)) is None:
        await connection.execute(f"CREATE SCHEMA {quote(schema)}")
        return 0
    if await connection.fetchval("SELECT to_regclass($1)", f"{quote(schema)}.head") is not None:
        found: int = await connection.fetchval(f"SELECT schema FROM {quote(schema)}.head")
        return found
    tables = await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = $1", schema)
    if tables:
        raise StoreError(
            f"the schema {schema} holds {tables} tables of another program: give bursar its own (?schema=)"
        )
    return 0


def _fill(text: str, schema: str) -> str:
    return text.format(
        s=quote(schema),
        channel=channel_of(schema),
        kept=CHANGES_KEPT,
        notice_max=NOTICE_MAX_BYTES,
        failed=FAILED,
    )


class Statements:
    """The statements for one schema."""

    def __init__(self, schema: str) -> None:
        self.read, self.apply, self.beat, self.open, self.end, self.sweep, self.changes = (
            _fill(text, schema) for text in (READ, APPLY, BEAT, OPEN, END, SWEEP, CHANGES)
        )
