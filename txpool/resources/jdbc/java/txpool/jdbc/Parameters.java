package txpool.jdbc;

import java.lang.reflect.Array;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.OffsetTime;
import java.util.UUID;

/** One column of parameters: the values of one place, in all sets of a batch. */
final class Parameters {
    final Object[] values;
    final byte[] kinds;
    /** The kind of its values that are not NULL; NULL where there is none. */
    byte kind = Kind.NULL;

    /** Reads parts, each with the places of the values of one kind. */
    Parameters(ByteBuffer in, int rows) {
        values = new Object[rows];
        kinds = new byte[rows];
        for (int parts = in.getInt(); parts > 0; parts--) {
            readPart(in);
        }
    }

    private void readPart(ByteBuffer in) {
        byte partKind = in.get();
        int count = in.getInt();
        int[] places = null;
        if (count < 0) {
            count = values.length;
        } else {
            places = new int[count];
            for (int i = 0; i < count; i++) {
                places[i] = in.getInt();
            }
        }
        Object[] found = readValues(in, partKind, count);
        for (int i = 0; i < count; i++) {
            int place = places == null ? i : places[i];
            values[place] = found[i];
            kinds[place] = partKind;
        }
        if (partKind != Kind.NULL && count > 0) {
            kind = wider(kind, partKind);
        }
    }

    private static byte wider(byte one, byte other) {
        if (one == Kind.NULL || one == other) {
            return other;
        }
        boolean whole = (one == Kind.INT || one == Kind.LONG) && (other == Kind.INT || other == Kind.LONG);
        if (whole) {
            return Kind.LONG;
        }
        return isNumber(one) && isNumber(other) ? Kind.DECIMAL : Kind.TEXT;
    }

    private static boolean isNumber(byte kind) {
        return kind == Kind.INT || kind == Kind.LONG || kind == Kind.DOUBLE || kind == Kind.DECIMAL;
    }

    private static Object[] readValues(ByteBuffer in, byte kind, int count) {
        Object[] found = new Object[count];
        switch (kind) {
            case Kind.NULL:
                break;
            case Kind.INT:
                for (int i = 0; i < count; i++) {
                    found[i] = in.getInt();
                }
                break;
            case Kind.LONG:
                for (int i = 0; i < count; i++) {
                    found[i] = in.getLong();
                }
                break;
            case Kind.DOUBLE:
                for (int i = 0; i < count; i++) {
                    found[i] = Double.longBitsToDouble(in.getLong());
                }
                break;
            case Kind.BOOLEAN:
                for (int i = 0; i < count; i++) {
                    found[i] = in.get() != 0;
                }
                break;
            case Kind.BYTES:
            case Kind.ARRAY:
                byte[][] parts = readSized(in, count);
                for (int i = 0; i < count; i++) {
                    found[i] = kind == Kind.BYTES ? parts[i] : readArray(parts[i]);
                }
                break;
            default:
                String[] texts = readTexts(in, count);
                for (int i = 0; i < count; i++) {
                    found[i] = parsed(texts[i], kind);
                }
        }
        return found;
    }

    private static byte[][] readSized(ByteBuffer in, int count) {
        byte[][] found = new byte[count][];
        for (int i = 0; i < count; i++) {
            found[i] = new byte[in.getInt()];
        }
        for (byte[] each : found) {
            in.get(each);
        }
        return found;
    }

    private static String[] readTexts(ByteBuffer in, int count) {
        String[] found = new String[count];
        if (in.get() != 0) {
            byte[][] parts = readSized(in, count);
            for (int i = 0; i < count; i++) {
                found[i] = new String(parts[i], StandardCharsets.UTF_8);
            }
            return found;
        }
        byte[] joined = new byte[in.getInt()];
        in.get(joined);
        String text = new String(joined, StandardCharsets.UTF_8);
        int from = 0;
        for (int i = 0; i < count; i++) {
            int to = i + 1 == count ? text.length() : text.indexOf('\0', from);
            found[i] = text.substring(from, to);
            from = to + 1;
        }
        return found;
    }

    private static Parameters readArray(byte[] bytes) {
        ByteBuffer in = ByteBuffer.wrap(bytes).order(java.nio.ByteOrder.LITTLE_ENDIAN);
        return new Parameters(in, in.getInt());
    }

    private static Object parsed(String text, byte kind) {
        switch (kind) {
            case Kind.DECIMAL:
                return new BigDecimal(text);
            case Kind.DATE:
                return LocalDate.parse(text);
            case Kind.TIME:
                return LocalTime.parse(text);
            case Kind.DATETIME:
                return LocalDateTime.parse(text);
            case Kind.ZONED_TIME:
                return OffsetTime.parse(text);
            case Kind.ZONED_DATETIME:
                return OffsetDateTime.parse(text);
            case Kind.UUID:
                return UUID.fromString(text);
            case Kind.INTERVAL:
                return Duration.parse(text);
            default:
                return text;
        }
    }

    /** How deep its arrays are: 1 where its elements are no arrays. */
    int depth() {
        for (int i = 0; i < values.length; i++) {
            if (values[i] instanceof Parameters) {
                return 1 + ((Parameters) values[i]).depth();
            }
        }
        return 1;
    }

    /** The kind of the innermost elements. */
    byte leafKind() {
        byte found = kind == Kind.ARRAY ? Kind.NULL : kind;
        for (Object each : values) {
            if (each instanceof Parameters) {
                found = wider(found, ((Parameters) each).leafKind());
            }
        }
        return found;
    }

    /** As Java has arrays; with `asTexts`, what is no number, text or binary value as its text. */
    Object[] toArray(boolean asTexts) {
        int[] sizes = new int[depth()];
        sizes[0] = values.length;
        Class<?> element = leafKind() == Kind.BYTES ? byte[].class : asTexts ? String.class : Object.class;
        Object[] found = (Object[]) Array.newInstance(element, sizes);
        for (int i = 0; i < values.length; i++) {
            Object value = values[i];
            if (value instanceof Parameters) {
                found[i] = ((Parameters) value).toArray(asTexts);
            } else if (value != null) {
                found[i] = found instanceof String[] ? text(value) : value;
            }
        }
        return found;
    }

    private static String text(Object value) {
        return value instanceof BigDecimal ? ((BigDecimal) value).toPlainString() : value.toString();
    }
}
