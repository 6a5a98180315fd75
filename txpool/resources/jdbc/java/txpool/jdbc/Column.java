package txpool.jdbc;

import java.sql.Array;
import java.sql.ResultSet;
import java.sql.SQLException;

/** One column of a block of rows, as it is read from a result. */
abstract class Column {
    final byte kind;
    final Out data = new Out(256);
    private final Out nulls = new Out(16);

    Column(byte kind) {
        this.kind = kind;
    }

    /** Add the value in this place of the present row, which gets the number `row` in the block. */
    abstract void read(ResultSet result, int place, int row) throws SQLException;

    final void isNull(int row) {
        nulls.putInt(row);
    }

    int size() {
        return data.length + nulls.length;
    }

    void clear() {
        data.length = 0;
        data.hasNul = false;
        nulls.length = 0;
    }

    /** The places of its NULLs, then its values, each after its size. */
    final void writeTo(Out out) {
        out.putInt(nulls.length / 4);
        out.putOut(nulls);
        int place = out.length;
        out.putInt(0);
        writeValues(out);
        out.putIntAt(place, out.length - place - 4);
    }

    void writeValues(Out out) {
        out.putOut(data);
    }

    static final class Longs extends Column {
        Longs(byte kind) {
            super(kind);
        }

        @Override
        void read(ResultSet result, int place, int row) throws SQLException {
            data.putLong(result.getLong(place));
            if (result.wasNull()) {
                isNull(row);
            }
        }
    }

    static final class Doubles extends Column {
        /** Single precision: the shortest decimal that means it, as the driver's text has it, and not its binary digits. */
        private final boolean single;

        Doubles(boolean single) {
            super(Kind.DOUBLE);
            this.single = single;
        }

        @Override
        void read(ResultSet result, int place, int row) throws SQLException {
            double value =
                    single ? Double.parseDouble(Float.toString(result.getFloat(place))) : result.getDouble(place);
            data.putLong(Double.doubleToRawLongBits(value));
            if (result.wasNull()) {
                isNull(row);
            }
        }
    }

    static final class Booleans extends Column {
        Booleans() {
            super(Kind.BOOLEAN);
        }

        @Override
        void read(ResultSet result, int place, int row) throws SQLException {
            data.putByte(result.getBoolean(place) ? 1 : 0);
            if (result.wasNull()) {
                isNull(row);
            }
        }
    }

    /** Values of any length. */
    abstract static class Sized extends Column {
        final Out lengths = new Out(64);

        Sized(byte kind) {
            super(kind);
        }

        @Override
        int size() {
            return super.size() + lengths.length;
        }

        @Override
        void clear() {
            super.clear();
            lengths.length = 0;
        }

        @Override
        void writeValues(Out out) {
            out.putOut(lengths);
            out.putOut(data);
        }
    }

    /** Texts with NUL between them; where one has a NUL itself, their lengths come first. */
    static class Texts extends Sized {
        Texts(byte kind) {
            super(kind);
        }

        @Override
        void read(ResultSet result, int place, int row) throws SQLException {
            add(result.getString(place), row);
        }

        final void add(String text, int row) {
            int before = data.length;
            if (text == null) {
                isNull(row);
            } else {
                data.putText(text);
            }
            lengths.putInt(data.length - before);
            boolean hasNul = data.hasNul;
            data.putByte(0);
            data.hasNul = hasNul;
        }

        @Override
        final void writeValues(Out out) {
            out.putByte(data.hasNul ? 1 : 0);
            if (data.hasNul) {
                out.putOut(lengths);
            }
            out.putOut(data);
        }
    }

    static final class Binaries extends Sized {
        Binaries() {
            super(Kind.BYTES);
        }

        @Override
        void read(ResultSet result, int place, int row) throws SQLException {
            byte[] value = result.getBytes(place);
            if (value == null) {
                isNull(row);
                lengths.putInt(0);
            } else {
                lengths.putInt(value.length);
                data.putBytes(value, value.length);
            }
        }
    }

    /** Read by the array's own result: getArray() has its times in Java's old classes, in the JVM's zone. */
    static final class Arrays extends Sized {
        Arrays() {
            super(Kind.ARRAY);
        }

        @Override
        void read(ResultSet result, int place, int row) throws SQLException {
            Array array = result.getArray(place);
            int before = data.length;
            if (array == null) {
                isNull(row);
            } else {
                try (ResultSet elements = array.getResultSet()) {
                    Column column = Columns.of(elements.getMetaData(), 2);
                    int count = 0;
                    while (elements.next()) {
                        column.read(elements, 2, count++);
                    }
                    data.putByte(column.kind);
                    data.putInt(count);
                    column.writeTo(data);
                }
                array.free();
            }
            lengths.putInt(data.length - before);
        }
    }
}
