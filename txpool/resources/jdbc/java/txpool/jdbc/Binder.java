package txpool.jdbc;

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLDataException;
import java.sql.SQLException;
import java.sql.SQLFeatureNotSupportedException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;
import java.time.DateTimeException;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.Calendar;

/** Gives parameters to a statement, as each driver takes them. */
final class Binder {
    private final Connection connection;
    private final boolean isPostgreSQL;
    private final boolean isMySQL;
    /** The driver has refused java.time's classes. */
    private boolean withoutJavaTime;
    private boolean hasUsedCalendar;

    /** The zone of MariaDB's or MySQL's session; null until this statement has asked. */
    private ZoneId sessionZone;

    Binder(Connection connection, String product) {
        this.connection = connection;
        isPostgreSQL = product.equals("postgresql");
        isMySQL = product.startsWith("mariadb") || product.startsWith("mysql");
    }

    /** Whether this statement had a time bound by a calendar, which Derby forgets in a batch: it then takes the JVM's zone. */
    boolean hasUsedCalendar() {
        return hasUsedCalendar;
    }

    /** Another statement begins. */
    void begin() {
        sessionZone = null;
        hasUsedCalendar = false;
    }

    void bind(PreparedStatement statement, int place, Parameters column, int row) throws SQLException {
        Object value = column.values[row];
        switch (column.kinds[row]) {
            case Kind.NULL:
                bindNull(statement, place, column.kind);
                break;
            case Kind.INT:
                statement.setInt(place, (Integer) value);
                break;
            case Kind.LONG:
                statement.setLong(place, (Long) value);
                break;
            case Kind.DOUBLE:
                if (isMySQL && !Double.isFinite((Double) value)) { // its driver would write a column's name
                    throw new SQLDataException("this database has no number " + value + ": send NULL", "22003");
                }
                statement.setDouble(place, (Double) value);
                break;
            case Kind.BOOLEAN:
                statement.setBoolean(place, (Boolean) value);
                break;
            case Kind.TEXT:
                statement.setString(place, (String) value);
                break;
            case Kind.BYTES:
                statement.setBytes(place, (byte[]) value);
                break;
            case Kind.DECIMAL:
                statement.setBigDecimal(place, (BigDecimal) value);
                break;
            case Kind.DATE:
            case Kind.TIME:
            case Kind.DATETIME:
                bindLocal(statement, place, value);
                break;
            case Kind.ARRAY:
                bindArray(statement, place, (Parameters) value);
                break;
            case Kind.UUID:
                bindOr(statement, place, value, Types.VARCHAR);
                break;
            case Kind.INTERVAL:
                bindOr(statement, place, value, Types.OTHER);
                break;
            default:
                bindZoned(statement, place, value);
        }
    }

    /** Some drivers want NULL's type, and only some can tell it. */
    private static void bindNull(PreparedStatement statement, int place, byte kind) throws SQLException {
        try {
            statement.setNull(place, sqlType(kind));
        } catch (SQLException error) {
            try {
                statement.setNull(place, Types.NULL);
            } catch (SQLException again) {
                statement.setNull(place, statement.getParameterMetaData().getParameterType(place));
            }
        }
    }

    private static int sqlType(byte kind) {
        switch (kind) {
            case Kind.INT:
                return Types.INTEGER;
            case Kind.LONG:
                return Types.BIGINT;
            case Kind.DOUBLE:
                return Types.DOUBLE;
            case Kind.BOOLEAN:
                return Types.BOOLEAN;
            case Kind.TEXT:
                return Types.VARCHAR;
            case Kind.BYTES:
                return Types.VARBINARY;
            case Kind.DECIMAL:
                return Types.NUMERIC;
            case Kind.DATE:
                return Types.DATE;
            case Kind.TIME:
                return Types.TIME;
            case Kind.DATETIME:
                return Types.TIMESTAMP;
            default:
                return Types.NULL;
        }
    }

    private void bindLocal(PreparedStatement statement, int place, Object value) throws SQLException {
        if (!withoutJavaTime) {
            SQLException refused;
            try {
                statement.setObject(place, value);
                return;
            } catch (SQLException error) {
                refused = error;
            } catch (RuntimeException | AbstractMethodError error) {
                refused = new SQLException(error.toString(), error);
            }
            try {
                bindOld(statement, place, value);
            } catch (SQLFeatureNotSupportedException error) {
                throw error;
            } catch (SQLException error) {
                throw refused;
            }
            withoutJavaTime = true;
            return;
        }
        bindOld(statement, place, value);
    }

    /** By Java's old classes. */
    private void bindOld(PreparedStatement statement, int place, Object value) throws SQLException {
        hasUsedCalendar = true;
        Calendar utc = Temporal.utc();
        if (value instanceof LocalDate) {
            long millis = ((LocalDate) value).atStartOfDay(ZoneOffset.UTC).toInstant().toEpochMilli();
            statement.setDate(place, new java.sql.Date(millis), utc);
        } else if (value instanceof LocalTime) {
            LocalTime time = (LocalTime) value;
            if (time.getNano() != 0) {
                throw new SQLFeatureNotSupportedException(
                        "this driver's TIME has no fractions of a second: round the time, or write a timestamp", "0A000");
            }
            statement.setTime(place, new java.sql.Time(time.toSecondOfDay() * 1000L), utc);
        } else {
            LocalDateTime time = (LocalDateTime) value;
            statement.setTimestamp(place, Timestamp.from(time.toInstant(ZoneOffset.UTC)), utc);
        }
    }

    private void bindZoned(PreparedStatement statement, int place, Object value) throws SQLException {
        if (isMySQL && value instanceof OffsetDateTime) {
            bindInSession(statement, place, (OffsetDateTime) value);
            return;
        }
        try {
            if (isMySQL) {
                throw new SQLFeatureNotSupportedException("it would be written in the JVM's zone", "0A000");
            }
            statement.setObject(place, value);
        } catch (SQLException | RuntimeException error) {
            throw new SQLFeatureNotSupportedException(
                    "this driver takes no times with a zone (" + error.getMessage()
                            + "): write the UTC time without a zone, and say so in the column's name",
                    "0A000");
        }
    }

    /** As its session reads it: the driver would take the JVM's zone for the session's. */
    private void bindInSession(PreparedStatement statement, int place, OffsetDateTime value) throws SQLException {
        if (sessionZone == null) {
            sessionZone = askZone();
        }
        LocalDateTime local = value.atZoneSameInstant(sessionZone).toLocalDateTime();
        if (sessionZone.getRules().getValidOffsets(local).size() != 1) {
            throw new SQLDataException(
                    value + " is " + local + " in the session's zone " + sessionZone
                            + ", which is two points in time: SET time_zone = '+00:00'",
                    "22007");
        }
        bindLocal(statement, place, local);
    }

    private ZoneId askZone() throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet zones = statement.executeQuery("select @@session.time_zone, @@system_time_zone")) {
            zones.next();
            String zone = zones.getString(1);
            try {
                return ZoneId.of(zone.equalsIgnoreCase("system") ? zones.getString(2) : zone);
            } catch (DateTimeException error) {
                throw new SQLFeatureNotSupportedException(
                        "a time with a zone cannot be sent in the session's zone " + zone + " (" + error.getMessage()
                                + "): SET time_zone = '+00:00', or another one by number or place",
                        "0A000");
            }
        }
    }

    private static void bindOr(PreparedStatement statement, int place, Object value, int type) throws SQLException {
        try {
            statement.setObject(place, value);
        } catch (SQLException | RuntimeException error) {
            statement.setObject(place, value.toString(), type);
        }
    }

    private void bindArray(PreparedStatement statement, int place, Parameters array) throws SQLException {
        byte leaf = array.leafKind();
        if (isPostgreSQL && leaf == Kind.NULL && array.values.length == 0) {
            statement.setObject(place, "{}", Types.OTHER); // of any type
            return;
        }
        Object[] elements = array.toArray(isPostgreSQL);
        statement.setArray(place, connection.createArrayOf(elementType(leaf), elements));
    }

    /** As PostgreSQL names them; the others' drivers do not ask. */
    private static String elementType(byte kind) {
        switch (kind) {
            case Kind.INT:
                return "int4";
            case Kind.LONG:
                return "int8";
            case Kind.DOUBLE:
                return "float8";
            case Kind.BOOLEAN:
                return "bool";
            case Kind.BYTES:
                return "bytea";
            case Kind.DECIMAL:
                return "numeric";
            case Kind.DATE:
                return "date";
            case Kind.TIME:
                return "time";
            case Kind.ZONED_TIME:
                return "timetz";
            case Kind.DATETIME:
                return "timestamp";
            case Kind.ZONED_DATETIME:
                return "timestamptz";
            case Kind.UUID:
                return "uuid";
            case Kind.INTERVAL:
                return "interval";
            default:
                return "text";
        }
    }
}
