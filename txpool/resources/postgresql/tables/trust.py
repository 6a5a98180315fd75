"""Which schemas and tables txpool trusts in PostgreSQL: by their owners, and by the owners of triggers and the like.

Any role that may connect may be able to create a schema or a table with a name that txpool uses, with a trigger that
runs as the role that writes into it, and with rows that claim decisions. So txpool writes and reads only what a trusted
role owns: the session's own roles, the roles that the datasource's file names, the roles that any of them is a member
of, the database's owner, and superusers. A superuser's right to act as any role is no membership, nor is the right to
grant a role.

Once a table and its schema are trusted, only their owners can change that, and roles to which the owner grants TRIGGER:
`txpool check` warns of these. So a process checks a table once, before its first use, and recovery once for each
connection. A transaction that checks a table itself locks it first: then nobody can add a trigger before it ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString, NamedTuple

import psycopg

from txpool.errors import OperationalError
from txpool.resources.postgresql.qualified import qualified

if TYPE_CHECKING:
    from txpool.resources.driver.raw import Executes

#: Two CTEs of a statement that `qualified` gets; `ours` has the oids of the trusted roles. The server's predefined
#: roles (pg_…, below 16384) only stand for rights: to be members of the same one makes two roles no more trusted.
OUR_ROLES: LiteralString = """
    member(oid) as (
        select oid from pg_roles where rolname = any (array[session_user, current_user])
            or rolname = any (%(roles)s::text[])
        union
        select m.roleid from member join pg_auth_members m on m.member = member.oid
        where m.roleid >= 16384::oid
            -- From PostgreSQL 16 on, the creator of a role is a member that may grant the role, and nothing else.
            and coalesce(
                (to_jsonb(m) ->> 'inherit_option'::text)::bool
                or (to_jsonb(m) ->> 'set_option'::text)::bool,
                true
            )
    ),
    ours(oid) as (
        table member
        union all select oid from pg_roles where rolsuper or rolname = 'pg_database_owner'
        union all select datdba from pg_database where datname = current_database()
    )
"""
_SCHEMA: LiteralString = qualified(
    f"""
    with recursive {OUR_ROLES}
    select 'schema', quote_ident(nspname), '', '', pg_get_userbyid(nspowner),
        quote_ident(session_user)
    from pg_namespace where nspname = %(schema)s and nspowner <> all (table ours)
"""
)
_ATTACHED: LiteralString = """
    it as (
        select c.oid, format('%%I.%%I', n.nspname, c.relname) as name, c.relkind, c.relowner, n.nspname,
            n.nspowner
        from unnest(%(relations)s::text[]) given join pg_class c on c.oid = to_regclass(given)::oid
            join pg_namespace n on n.oid = c.relnamespace
    ),
    attached(name, what, classid, objid) as (
        select name, format('trigger %%I', tgname), 'pg_trigger'::regclass::oid, t.oid
        from it join pg_trigger t on t.tgrelid = it.oid where not t.tgisinternal and t.tgenabled <> 'D'
        union all
        select name, format('rule %%I', rulename), 'pg_rewrite'::regclass::oid, r.oid
        from it join pg_rewrite r on r.ev_class = it.oid where r.ev_enabled <> 'D'
        union all
        select name, format('policy %%I', polname), 'pg_policy'::regclass::oid, p.oid
        from it join pg_policy p on p.polrelid = it.oid
        union all
        select name, format('the default of column %%I', attname), 'pg_attrdef'::regclass::oid, d.oid
        from it join pg_attrdef d on d.adrelid = it.oid
            join pg_attribute a on (a.attrelid, a.attnum) = (d.adrelid, d.adnum)
        union all
        select name, format('constraint %%I', conname), 'pg_constraint'::regclass::oid, c.oid
        from it join pg_constraint c on c.conrelid = it.oid
        union all
        select name, format('index %%s', indexrelid::regclass), 'pg_class'::regclass::oid, i.indexrelid
        from it join pg_index i on i.indrelid = it.oid
        union all
        select name, format('column %%I', attname), 'pg_type'::regclass::oid, a.atttypid
        from it join pg_attribute a on a.attrelid = it.oid and a.attnum > 0 and not a.attisdropped where %(types)s
    )
"""
_CALLABLE: LiteralString = """(array[
    'pg_proc'::regclass::oid, 'pg_operator'::regclass::oid, 'pg_type'::regclass::oid, 'pg_class'::regclass::oid
])"""
# pg_depend has no objects of initdb's: for most tables the last part of this finds nothing.
_RELATIONS: LiteralString = qualified(
    f"""
    with recursive {OUR_ROLES}, {_ATTACHED}
    select 'invisible', given, '', '', '', quote_ident(session_user)
    from unnest(%(relations)s::text[]) given
    where to_regclass(given) is not null and not exists (select from it where it.oid = to_regclass(given)::oid)
    union all
    select 'schema', quote_ident(nspname), '', '', pg_get_userbyid(nspowner),
        quote_ident(session_user)
    from it where nspowner <> all (table ours)
    union all
    select 'table', name, relkind::text, '', pg_get_userbyid(relowner), quote_ident(session_user)
    from it where relowner <> all (table ours)
    union all
    select 'kind', name, relkind::text, '', pg_get_userbyid(relowner), quote_ident(session_user)
    from it where relkind <> 'r'
    union all
    select 'inheritance', it.name, k.oid::regclass::text, '', pg_get_userbyid(k.relowner),
        quote_ident(session_user)
    from it join pg_inherits i on it.oid = any (array[i.inhparent, i.inhrelid])
        join pg_class k on k.oid = case when it.oid = i.inhparent then i.inhrelid else i.inhparent end
    where k.relowner <> all (table ours)
    union all
    select 'calls', h.name, '', '', '', '' from attached h
    where (h.classid = 'pg_type'::regclass::oid and h.objid >= 16384::oid) or exists (
        select from pg_depend d where (d.classid, d.objid) = (h.classid, h.objid) and d.refclassid = any {_CALLABLE}
            and not (d.refclassid = 'pg_class'::regclass::oid and d.refobjid = any (select oid from it)))
"""
)
# Executed only if the last part has found something: the planner may JIT-compile it, which takes longest of all.
_CALLED: LiteralString = qualified(
    f"""
    with recursive {OUR_ROLES}, {_ATTACHED},
    reached as (
        table attached
        union
        select r.name, r.what, next.classid, next.objid from reached r cross join lateral (
            select d.refclassid, d.refobjid from pg_depend d
            where (d.classid, d.objid) = (r.classid, r.objid)
                and not (d.refclassid = 'pg_class'::regclass::oid and d.refobjid = any (select oid from it))
                and d.refclassid = any {_CALLABLE}
            union all
            select 'pg_constraint'::regclass::oid, c.oid from pg_constraint c
            where r.classid = 'pg_type'::regclass::oid and c.contypid = r.objid
        ) next(classid, objid)
    )
    select 'attached', r.name, r.what, pg_describe_object(r.classid, r.objid, 0), pg_get_userbyid(o.owner),
        quote_ident(session_user)
    from reached r cross join lateral (
        select proowner from pg_proc where r.classid = 'pg_proc'::regclass::oid and oid = r.objid
        union all select oprowner from pg_operator where r.classid = 'pg_operator'::regclass::oid and oid = r.objid
        union all select typowner from pg_type where r.classid = 'pg_type'::regclass::oid and oid = r.objid
        union all select relowner from pg_class
        where r.classid = 'pg_class'::regclass::oid and oid = r.objid and relkind <> 'i' and relkind <> 'I'
    ) o(owner) where o.owner <> all (table ours)
"""
)
_WRITERS: LiteralString = qualified(
    f"""
    with recursive {OUR_ROLES},
    granted(oid, acl) as (
        select oid, relacl from pg_class
        union all select attrelid, attacl from pg_attribute where attnum > 0 and not attisdropped
    )
    select format('%%I.%%I', n.nspname, c.relname), coalesce(quote_ident(r.rolname), 'PUBLIC'),
        array_agg(distinct a.privilege_type order by a.privilege_type)
    from unnest(%(relations)s::text[]) given join pg_class c on c.oid = to_regclass(given)::oid
        join pg_namespace n on n.oid = c.relnamespace join granted g on g.oid = c.oid
        cross join lateral aclexplode(g.acl) a left join pg_roles r on r.oid = a.grantee
    where a.privilege_type = any (array['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER'])
        and a.grantee <> all (table ours)
    group by 1, 2 order by 1, 2
"""
)
_CREATORS: LiteralString = qualified(
    f"""
    with recursive {OUR_ROLES}
    select quote_ident(n.nspname), coalesce(quote_ident(r.rolname), 'PUBLIC')
    from pg_namespace n cross join lateral aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
        left join pg_roles r on r.oid = a.grantee
    where n.nspname = any (current_schemas(false)) and a.privilege_type = 'CREATE' and a.grantee <> all (table ours)
    group by 1, 2 order by 1, 2
"""
)
_KINDS = {
    "r": "table",
    "p": "table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
    "S": "sequence",
    "c": "type",
}


@dataclass(frozen=True, slots=True)
class TrustFault:
    """Why a schema or a table is not trusted, and what to do about it."""

    found: str
    do: str
    #: The role that is not trusted; empty if the fault is another.
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TableWriter:
    """A role that is not trusted and may write a table; `role` is PUBLIC if every role may."""

    table: str
    role: str
    privileges: tuple[str, ...]


def schema_faults(cursor: Executes, schema: str, *, roles: Collection[str] = ()) -> list[TrustFault]:
    """The faults of a schema; none if it does not exist. `roles` are trusted beside the session's own."""
    rows = cursor.execute(_SCHEMA, {"schema": schema, "roles": [*roles]}).fetchall()
    return [_fault(_FaultRow(*row)) for row in rows]


def relation_faults(
    cursor: Executes, relations: Sequence[str], *, roles: Collection[str] = (), types: bool = True
) -> list[TrustFault]:
    """The faults of tables, with their schemas, triggers, defaults and the like; none if a table does not exist.

    Names are looked up on the search path. Without `types` the owners of the columns' types are not checked.
    """
    parameters = {"relations": [*relations], "roles": [*roles], "types": types}
    rows = [_FaultRow(*row) for row in cursor.execute(_RELATIONS, parameters).fetchall()]
    # It may have been created since the snapshot: the next statement has a newer one.
    if any(row.sort == "invisible" for row in rows):
        rows = [_FaultRow(*row) for row in cursor.execute(_RELATIONS, parameters).fetchall()]
    found = [row for row in rows if row.sort != "calls"]
    if len(found) < len(rows):
        found += [_FaultRow(*row) for row in cursor.execute(_CALLED, parameters).fetchall()]
    return [_fault(row) for row in found]


def writers(cursor: Executes, relations: Sequence[str], *, roles: Collection[str] = ()) -> list[TableWriter]:
    """The roles that are not trusted, and have been granted to write tables or to create triggers on them."""
    rows = cursor.execute(_WRITERS, {"relations": [*relations], "roles": [*roles]}).fetchall()
    return [TableWriter(table, role, tuple(privileges)) for table, role, privileges in rows]


def creators(cursor: Executes, *, roles: Collection[str] = ()) -> list[tuple[str, str]]:
    """The schemas of the search path in which a role may create that is not trusted, each with that role or PUBLIC."""
    rows = cursor.execute(_CREATORS, {"roles": [*roles]}).fetchall()
    return [(schema, role) for schema, role in rows]


def require_schema(cursor: Executes, schema: str, *, roles: Collection[str] = ()) -> None:
    """Raise OperationalError if the schema is not trusted."""
    _require(schema_faults(cursor, schema, roles=roles))


def require_relations(cursor: Executes, *relations: str, roles: Collection[str] = (), types: bool = True) -> None:
    """Raise OperationalError if a table is not trusted."""
    _require(relation_faults(cursor, relations, roles=roles, types=types))


def require_locked(cursor: Executes, relation: str, *, roles: Collection[str] = (), types: bool = True) -> None:
    """As `require_relations`, with a lock: nobody can change the table before the cursor's transaction ends."""
    try:
        cursor.execute(f"savepoint txpool_trust; lock table {relation} in row exclusive mode; release txpool_trust")
    except psycopg.Error:
        cursor.execute("rollback to txpool_trust")
        require_relations(cursor, relation, roles=roles, types=types)  # whose error says more
        raise
    require_relations(cursor, relation, roles=roles, types=types)


def message_of(fault: TrustFault) -> str:
    """The message of the error that a fault raises."""
    return (
        f"{fault.found}. Only objects of trusted owners are used: the session's user, a role that it is a member of, "
        f"the database's owner, or a superuser. Nothing was done; {fault.do}"
    )


def _require(faults: Sequence[TrustFault]) -> None:
    if faults:
        raise OperationalError(message_of(faults[0]))


class _FaultRow(NamedTuple):
    """A fault as the queries return it."""

    sort: str
    #: The table or schema, quoted if SQL needs it.
    name: str
    #: Its relkind, the trigger or the like that belongs to it, or its parent or child table.
    what: str
    #: The function, operator or type that `what` uses.
    called: str
    owner: str
    user: str


def _fault(row: _FaultRow) -> TrustFault:
    """A fault in words."""
    name, what, owner = row.name, row.what, row.owner
    match row.sort:
        case "invisible":
            found, do = f"table {name} was created after this transaction began, and its owner cannot be read", ""
        case "kind":
            kind = "partitioned" if what == "p" else f"a {_KINDS.get(what, 'relation')}"
            found, do, owner = f"{name} is {kind}, and only a plain table is used", f"drop {name}, create it again", ""
        case "inheritance":
            found, do = f"{name} has {what} of {owner} for a parent or a child table", f"drop {what}, or detach it"
        case "attached":
            called = f"is of {row.called}" if row.called.startswith("type") else f"calls {row.called}"
            found, do = f"{what} of {name} {called}, which belongs to {owner}", f"drop {what}, or alter its owner"
            kind, _, label = what.partition(" ")
            if kind in ("trigger", "rule", "policy"):
                do = f"drop it: DROP {kind.upper()} {label} ON {name};"
        case _:
            kind = "schema" if row.sort == "schema" else _KINDS.get(what, "relation")
            found, do = f"{kind} {name} belongs to {owner}", f"ALTER {kind.upper()} {name} OWNER TO {row.user};"
            do = f"drop it; or, if you know who has created it and what for, {do}"
    return TrustFault(found, do or "try again", owner)
