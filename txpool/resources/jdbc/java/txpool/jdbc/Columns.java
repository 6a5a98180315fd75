package txpool.jdbc;

import java.lang.reflect.Method;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.sql.Types;
import java.time.Duration;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.util.Locale;

/** The columns of a result: how each of its types is read. */
final class Columns {
    /** Bytes after which a block ends. */
    private static final int ENOUGH = 1 << 18;

    private static final int ORACLE_ZONED = -101;
    private static final int ORACLE_LOCAL = -102;
    private static final int ORACLE_FLOAT = 100;
    private static final int ORACLE_DOUBLE = 101;
    private static final int SQL_SERVER_ZONED = -155;

    private final ResultSet result;
    private final Column[] columns;

    Columns(ResultSet result) throws SQLException {
        this.result = result;
        ResultSetMetaData about = result.getMetaData();
        columns = new Column[about.getColumnCount()];
        for (int i = 0; i < columns.length; i++) {
            columns[i] = of(about, i + 1);
        }
    }

    /** The names and types. */
    void writeHeader(Out out) throws SQLException {
        ResultSetMetaData about = result.getMetaData();
        out.putInt(columns.length);
        for (int i = 0; i < columns.length; i++) {
            out.putByte(columns[i].kind);
            out.putInt(about.getColumnType(i + 1));
            out.putInt(about.getPrecision(i + 1));
            out.putInt(about.getScale(i + 1));
            writeText(out, typeName(about, i + 1));
            writeText(out, about.getColumnLabel(i + 1));
        }
    }

    /**
     * The type's name. PostgreSQL's driver would ask the server whether a column counts by itself, by a statement whose
     * operators are looked up on the search path: one that another role has made there would run as this one.
     */
    private static String typeName(ResultSetMetaData about, int place) throws SQLException {
        if (about.getClass().getName().startsWith("org.postgresql.")) {
            try {
                Method name = about.getClass().getDeclaredMethod("getPGType", int.class);
                name.setAccessible(true);
                return (String) name.invoke(about, place);
            } catch (ReflectiveOperationException | RuntimeException e) {
                throw new SQLException("this version of PostgreSQL's driver is not known: " + e, e);
            }
        }
        return about.getColumnTypeName(place);
    }

    private static void writeText(Out out, String text) {
        int place = out.length;
        out.putInt(0);
        out.putText(text == null ? "" : text);
        out.putIntAt(place, out.length - place - 4);
    }

    /** Read at most so many rows into a block; whether there may be more. */
    boolean writeBlock(Out out, int rows) throws SQLException {
        for (Column column : columns) {
            column.clear();
        }
        int count = 0;
        boolean more = true;
        while (count < rows && more) {
            more = result.next();
            if (!more) {
                break;
            }
            int size = 0;
            for (int i = 0; i < columns.length; i++) {
                columns[i].read(result, i + 1, count);
                size += columns[i].size();
            }
            count++;
            if (size > ENOUGH || size < 0) {
                break;
            }
        }
        out.putInt(count);
        out.putByte(more ? 1 : 0);
        for (Column column : columns) {
            column.writeTo(out);
        }
        return more;
    }

    /** Drivers that are not known to have LocalDateTime without the JVM's own zone: there an hour in spring is missing. */
    private static Class<?> localClass(String driver) {
        boolean exact = driver.startsWith("org.postgresql.") || driver.startsWith("org.h2.");
        return exact ? LocalDateTime.class : Timestamp.class;
    }

    static Column of(ResultSetMetaData about, int place) throws SQLException {
        String driver = about.getClass().getName();
        boolean isMySQL = driver.startsWith("org.mariadb.jdbc.") || driver.startsWith("com.mysql.");
        String given = typeName(about, place);
        String name = given == null ? "" : given.toLowerCase(Locale.ROOT);
        switch (about.getColumnType(place)) {
            case Types.TINYINT:
            case Types.SMALLINT:
            case Types.INTEGER:
                return new Column.Longs(Kind.LONG);
            case Types.BIGINT:
                return about.isSigned(place) || !name.contains("unsigned")
                        ? new Column.Longs(Kind.LONG)
                        : new Column.Texts(Kind.INTEGER);
            case Types.BIT:
            case Types.BOOLEAN:
                if (name.equals("bit") && about.getPrecision(place) != 1) {
                    return isMySQL ? new Column.Binaries() : new Column.Texts(Kind.TEXT);
                }
                return isMySQL && !name.equals("bit") ? new Column.Longs(Kind.SMALL_BOOLEAN) : new Column.Booleans();
            case Types.REAL:
                return new Column.Doubles(true);
            case Types.FLOAT:
            case Types.DOUBLE:
                return name.equals("money") ? new Column.Texts(Kind.TEXT) : new Column.Doubles(false);
            case ORACLE_FLOAT:
            case ORACLE_DOUBLE:
                return new Column.Doubles(false);
            case Types.NUMERIC:
            case Types.DECIMAL:
                return new Column.Texts(Kind.DECIMAL);
            case Types.DATE:
                return name.equals("year") ? new Column.Longs(Kind.LONG) : Temporal.dates();
            case Types.TIME:
                // MariaDB's are longer than a day, or negative, too, and as Java's times they would be others.
                return isMySQL ? Temporal.texts(Kind.TIME) : Temporal.times(name.equals("timetz"));
            case Types.TIME_WITH_TIMEZONE:
                return Temporal.times(true);
            case Types.TIMESTAMP:
                return name.equals("timestamptz")
                        ? Temporal.datetimes(OffsetDateTime.class)
                        : Temporal.datetimes(localClass(driver));
            case Types.TIMESTAMP_WITH_TIMEZONE:
            case ORACLE_ZONED:
            case ORACLE_LOCAL:
            case SQL_SERVER_ZONED:
                return Temporal.datetimes(OffsetDateTime.class);
            case Types.BINARY:
            case Types.VARBINARY:
            case Types.LONGVARBINARY:
            case Types.BLOB:
                return name.equals("uuid") ? new Column.Texts(Kind.UUID) : new Column.Binaries();
            case Types.ARRAY:
                return new Column.Arrays();
            default:
                if (name.equals("uuid")) {
                    return new Column.Texts(Kind.UUID);
                }
                if (name.startsWith("interval")) {
                    return new Temporal(Kind.INTERVAL, Duration.class);
                }
                return new Column.Texts(Kind.TEXT);
        }
    }
}
