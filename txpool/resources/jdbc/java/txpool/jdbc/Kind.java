package txpool.jdbc;

/** How a column's values cross between Java and Python. values.py has the same numbers. */
final class Kind {
    static final byte NULL = 0;
    static final byte LONG = 1; // eight bytes
    static final byte DOUBLE = 2; // eight bytes
    static final byte BOOLEAN = 3; // one byte
    static final byte TEXT = 4;
    static final byte BYTES = 5;
    // From here on as text.
    static final byte DECIMAL = 6;
    static final byte INTEGER = 7;
    static final byte DATE = 8;
    static final byte TIME = 9;
    static final byte DATETIME = 10;
    static final byte UUID = 11;
    static final byte INTERVAL = 12;
    // Each value as bytes of its own, which are a kind, a number of elements, and a column.
    static final byte ARRAY = 13;
    // Eight bytes: MariaDB's and MySQL's BOOLEAN, which can have any small integer.
    static final byte SMALL_BOOLEAN = 14;
    // Only in parameters.
    static final byte INT = 15; // four bytes
    static final byte ZONED_TIME = 16; // text
    static final byte ZONED_DATETIME = 17; // text

    private Kind() {}
}
