"""What a PostgreSQL statement calls, by its text, and which of that is known to leave nothing in the session.

Known are the server's own functions that change nothing but the transaction, by their names. Any other function may do
anything: its text is not in sight.
"""

from __future__ import annotations

import re
from typing import Final

from txpool.sql.dialects import POSTGRESQL


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A statement that begins otherwise may run what is not in its text, as REFRESH MATERIALIZED VIEW does. Some of these
# leave something, which their command tag shows.
_PLAIN: Final = _names(
    """
    select insert update delete merge with values table fetch move close copy explain show set reset listen
    unlisten notify declare prepare execute deallocate discard savepoint release begin start commit end rollback
    abort do call lock truncate
    """
)
# Words that stand before a parenthesis and call nothing.
_WORDS: Final = _names(
    """
    all and any array as between bernoulli bigint bit by case cast char character check collate conflict copy
    cross cube dec decimal delete distinct else except exists filter float from full group having ilike in inner
    insert intersect into is join key left like limit materialized natural not nothing null numeric offset on only
    or over overlaps partition precision returning right rollup row rows select set sets similar some symmetric
    system table text then time timestamp timestamptz timetz to union unique update using values varbit varchar
    varying when where window with within
    """
)
#: Functions that are immutable or stable, with what the grammar makes look like one.
KNOWN: Final = _names(
    """
    coalesce nullif greatest least extract grouping normalize overlay position substring trim array_agg avg
    bit_and bit_or bool_and bool_or corr count covar_pop covar_samp cume_dist dense_rank every first_value
    json_agg json_object_agg jsonb_agg jsonb_object_agg lag last_value lead max min mode nth_value ntile
    percent_rank percentile_cont percentile_disc range_agg rank regr_slope row_number stddev stddev_pop
    stddev_samp string_agg sum var_pop var_samp variance xmlagg abs acos asin atan atan2 cbrt ceil ceiling cos cot
    degrees div exp factorial floor gcd lcm ln log log10 mod pi power pow radians round scale sign sin sqrt tan
    trim_scale trunc width_bucket float4 float8 int2 int4 int8 bool date name numeric text oid ascii bit_count
    bit_length btrim char_length character_length chr concat concat_ws convert convert_from convert_to decode
    encode format get_bit get_byte initcap left length lower lpad ltrim md5 octet_length parse_ident quote_ident
    quote_literal quote_nullable regexp_count regexp_instr regexp_like regexp_match regexp_matches regexp_replace
    regexp_split_to_array regexp_split_to_table regexp_substr repeat replace reverse right rpad rtrim set_bit
    set_byte sha224 sha256 sha384 sha512 split_part starts_with string_to_array string_to_table strpos substr
    to_char to_hex to_number translate unistr upper age date_bin date_part date_trunc isfinite justify_days
    justify_hours justify_interval make_date make_interval make_time make_timestamp make_timestamptz now
    statement_timestamp timezone to_date to_timestamp transaction_timestamp array_append array_cat array_dims
    array_fill array_length array_lower array_ndims array_position array_positions array_prepend array_remove
    array_replace array_to_string array_upper cardinality daterange generate_series generate_subscripts int4range
    int8range isempty lower_inc lower_inf numrange range_merge trim_array tsrange tstzrange unnest upper_inc
    upper_inf array_to_json json_array_elements json_array_elements_text json_array_length json_build_array
    json_build_object json_each json_each_text json_extract_path json_extract_path_text json_object
    json_object_keys json_populate_record json_populate_recordset json_strip_nulls json_to_record
    json_to_recordset json_typeof jsonb_array_elements jsonb_array_elements_text jsonb_array_length
    jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path jsonb_extract_path_text
    jsonb_insert jsonb_object jsonb_object_keys jsonb_path_exists jsonb_path_match jsonb_path_query
    jsonb_path_query_array jsonb_path_query_first jsonb_populate_record jsonb_populate_recordset jsonb_pretty
    jsonb_set jsonb_strip_nulls jsonb_to_record jsonb_to_recordset jsonb_typeof row_to_json to_json to_jsonb
    broadcast family host masklen netmask network numnode phraseto_tsquery plainto_tsquery querytree setweight
    strip to_tsquery to_tsvector ts_headline ts_rank ts_rank_cd websearch_to_tsquery col_description
    current_database current_schema current_schemas current_setting format_type has_schema_privilege
    has_table_privilege obj_description pg_backend_pid pg_describe_object pg_get_constraintdef pg_get_expr
    pg_get_functiondef pg_get_indexdef pg_get_serial_sequence pg_get_viewdef pg_table_is_visible pg_typeof
    to_regclass to_regnamespace to_regproc to_regrole to_regtype txid_current txid_current_snapshot version
    """
)
#: Functions that are neither immutable nor stable, and leave nothing that outlives the transaction but the last number
#: of a sequence.
CHANGES_NO_SESSION: Final = _names(
    """
    clock_timestamp currval gen_random_uuid lastval nextval pg_advisory_unlock pg_advisory_unlock_all
    pg_advisory_unlock_shared pg_advisory_xact_lock pg_advisory_xact_lock_shared pg_cancel_backend pg_column_size
    pg_current_wal_lsn pg_database_size pg_is_in_recovery pg_notify pg_relation_size pg_sleep pg_stat_get_activity
    pg_table_size pg_terminate_backend pg_total_relation_size pg_try_advisory_xact_lock
    pg_try_advisory_xact_lock_shared random set_config setval timeofday uuidv4 uuidv7
    """
)
_NO_CALLS: Final = _WORDS | KNOWN | CHANGES_NO_SESSION

_NAME: Final = r'(?:"[^"]*"|(?<![\w$\x80-\U0010ffff])[a-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*)'
# The name before a parenthesis, what it is qualified with, and a word before both behind which it is that of a table.
_BEFORE_PARENTHESIS: Final = re.compile(rf"(?:\b(into|copy|as)\b\s*)?((?:{_NAME}\s*\.\s*){{0,3}})({_NAME})\s*\(")
_FIRST_WORD: Final = re.compile(r"[\s(]*([a-z]*)")
# A text without these has nothing but plain quotes.
_ODD: Final = re.compile(r"--|/\*|\\|\$[^0-9]")
_QUOTED: Final = re.compile(r"""'[^']*'|("[^"]*")""")
# As `qualified` writes them; without its schema an operator has no parenthesis.
_OPERATOR: Final = re.compile(r"operator\(pg_catalog\.[-+*/<>=~!@#%^&|`]+\)")
_PLAIN_NAME: Final = re.compile(r'"[\w$]*"')


def is_certain(text: str) -> bool:
    """Whether a text, in small letters, surely calls no function by a name but those that are known."""
    if _ODD.search(text) is None:
        return _is_certain(_QUOTED.sub(r" \1 ", text) if "'" in text else text)
    return all(map(_is_certain, POSTGRESQL.bare(text)))


def _is_certain(bare: str) -> bool:
    bare = _OPERATOR.sub(" ", bare)
    for statement in bare.split(";"):
        if (word := _FIRST_WORD.match(statement)) is not None and statement.strip() and word[1] not in _PLAIN:
            return False
    if '"' in bare and '"' in _PLAIN_NAME.sub("", bare):  # a name may have anything in it, as a parenthesis
        return False
    return "(" not in bare or all(map(_is_known, _BEFORE_PARENTHESIS.findall(bare)))


def _is_known(found: tuple[str, str, str]) -> bool:
    behind, schema, name = found
    if behind:
        return True
    return name in _NO_CALLS and schema.rstrip(". \t\n\r\f\v") in ("", "pg_catalog")
