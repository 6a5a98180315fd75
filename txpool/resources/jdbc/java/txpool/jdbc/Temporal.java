package txpool.jdbc;

import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.LocalDate;
import java.time.LocalTime;
import java.time.OffsetTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoField;
import java.time.temporal.TemporalAccessor;
import java.util.Calendar;
import java.util.Date;
import java.util.GregorianCalendar;
import java.util.TimeZone;

/** Dates and times as ISO 8601, by java.time where the driver can, else by its texts. Never by the JVM's time zone. */
final class Temporal extends Column.Texts {
    /** Before a value that Python's classes cannot hold: as it stands it would lose digits there, or be another value. */
    private static final String BEYOND = "!";

    private static final int MICROSECOND_DIGITS = 6;

    private final Class<?> type;
    private boolean asText;

    Temporal(byte kind, Class<?> type) {
        super(kind);
        this.type = type;
    }

    @Override
    void read(ResultSet result, int place, int row) throws SQLException {
        if (!asText) {
            Object value = null;
            SQLException refused = null;
            try {
                value = type == Timestamp.class ? timestamp(result, place) : result.getObject(place, type);
            } catch (SQLException error) {
                refused = error;
            } catch (RuntimeException | AbstractMethodError error) {
                refused = new SQLException(error.toString(), error);
            }
            if (value != null) {
                add(iso(value), row);
                return;
            }
            if (refused != null) {
                try {
                    add(isoText(result.getString(place)), row);
                } catch (SQLException error) {
                    throw refused;
                }
                asText = true;
                return;
            }
        }
        // Also where java.time has null: MariaDB's driver has that for the date 0000-00-00, which is none.
        String text = result.getString(place);
        add(asText || text == null ? isoText(text) : BEYOND + text, row);
    }

    /** By a calendar of UTC: a point in time that stands for the local one, whatever the JVM's zone. */
    private static Object timestamp(ResultSet result, int place) throws SQLException {
        Timestamp found = result.getTimestamp(place, utc());
        String text = found == null ? null : result.getString(place);
        // Days and months of MariaDB's and MySQL's may be 0, and the driver counts them back.
        boolean isDate = text == null || text.length() < 10 || !text.startsWith("-00", 4) && !text.startsWith("-00", 7);
        return found == null || !isDate ? null : found.toInstant().atOffset(ZoneOffset.UTC).toLocalDateTime();
    }

    /** Of all years by Gregory's rules, as Python has it. */
    static Calendar utc() {
        GregorianCalendar utc = new GregorianCalendar(TimeZone.getTimeZone("UTC"));
        utc.setGregorianChange(new Date(Long.MIN_VALUE));
        return utc;
    }

    private static String iso(Object value) {
        String text = value.toString();
        if (!(value instanceof TemporalAccessor)) {
            return isoText(text);
        }
        TemporalAccessor temporal = (TemporalAccessor) value;
        boolean exact = true;
        if (!(value instanceof LocalDate)) {
            exact = temporal.get(ChronoField.NANO_OF_SECOND) % 1000 == 0;
        }
        if (exact && !(value instanceof LocalTime) && !(value instanceof OffsetTime)) {
            int year = temporal.get(ChronoField.YEAR);
            exact = year >= 1 && year <= 9999;
        }
        return exact ? text : BEYOND + text;
    }

    /** The text with at most six digits of a second, where the others are zeros. */
    private static String isoText(String text) {
        int point = text == null ? -1 : text.indexOf('.');
        if (point < 0) {
            return text;
        }
        int end = point + 1;
        while (end < text.length() && Character.isDigit(text.charAt(end))) {
            end++;
        }
        int last = end;
        while (last - point - 1 > MICROSECOND_DIGITS && text.charAt(last - 1) == '0') {
            last--;
        }
        if (last - point - 1 > MICROSECOND_DIGITS) {
            return BEYOND + text;
        }
        return text.substring(0, last) + text.substring(end);
    }

    static Temporal dates() {
        return new Temporal(Kind.DATE, LocalDate.class);
    }

    static Temporal times(boolean zoned) {
        return new Temporal(Kind.TIME, zoned ? OffsetTime.class : LocalTime.class);
    }

    static Temporal datetimes(Class<?> type) {
        return new Temporal(Kind.DATETIME, type);
    }

    static Temporal texts(byte kind) {
        Temporal made = new Temporal(kind, String.class);
        made.asText = true;
        return made;
    }
}
