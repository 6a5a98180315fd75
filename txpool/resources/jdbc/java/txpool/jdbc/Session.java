package txpool.jdbc;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.HashMap;
import java.util.Map;

/**
 * What executes on one connection. Requests and answers lie in one buffer that Python reads too, so that a statement with
 * its parameters, its result's types and its first rows take one call. One thread at a time, but for cancel().
 */
public final class Session {
    private static final int SMALLEST = 1 << 16;
    private static final int HAS_RESULT = 1;
    private static final int IS_OPEN = 2;
    private static final int HAS_KEY = 4;

    private final Connection connection;
    private final Binder binder;
    private final Map<Integer, Open> open = new HashMap<>();
    private ByteBuffer buffer;
    private int lastNumber;
    private volatile Statement running;

    /** A statement whose results were not read to their end. */
    private static final class Open {
        final Statement statement;
        Columns columns;
        /** What the statement's next result has met, which is nobody's before it is asked for. */
        SQLException pending;

        Open(Statement statement) {
            this.statement = statement;
        }
    }

    public Session(Connection connection, String product) {
        this.connection = connection;
        binder = new Binder(connection, product);
        room(SMALLEST);
    }

    /** Another buffer, of this size. */
    public ByteBuffer room(int size) {
        buffer = ByteBuffer.allocateDirect(Math.max(size, SMALLEST)).order(ByteOrder.LITTLE_ENDIAN);
        return buffer;
    }

    public ByteBuffer buffer() {
        return buffer;
    }

    /** Execute what the buffer asks; the length of the answer, less than 0 where it is in another buffer. */
    public int execute() throws SQLException {
        ByteBuffer in = request();
        int timeout = in.getInt();
        int fetchSize = in.getInt();
        int firstRows = in.getInt();
        boolean wantsKey = in.get() != 0;
        String sql = readText(in);
        int columns = in.getInt();
        int keys = wantsKey ? Statement.RETURN_GENERATED_KEYS : Statement.NO_GENERATED_KEYS;
        Statement statement = null;
        try {
            boolean isResult;
            if (columns == 0) {
                statement = connection.createStatement();
                prepareFor(statement, timeout, fetchSize);
                isResult = wantsKey ? statement.execute(sql, keys) : statement.execute(sql);
            } else {
                PreparedStatement prepared =
                        wantsKey ? connection.prepareStatement(sql, keys) : connection.prepareStatement(sql);
                statement = prepared;
                for (int i = 1; i <= columns; i++) {
                    binder.bind(prepared, i, new Parameters(in, 1), 0);
                }
                prepareFor(statement, timeout, fetchSize);
                isResult = prepared.execute();
            }
            Out out = new Out(1024);
            answer(out, new Open(statement), 0, isResult, firstRows, wantsKey);
            return hand(out);
        } catch (Throwable error) {
            closeQuietly(statement);
            throw error;
        } finally {
            running = null;
        }
    }

    /** Execute the buffer's statement for each of its sets of parameters; how many rows it has changed, -1 if unknown. */
    public long executeMany() throws SQLException {
        ByteBuffer in = request();
        int timeout = in.getInt();
        String sql = readText(in);
        int rows = in.getInt();
        Parameters[] columns = new Parameters[in.getInt()];
        for (int i = 0; i < columns.length; i++) {
            columns[i] = new Parameters(in, rows);
        }
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            prepareFor(statement, timeout, 0);
            long changed = 0;
            int waiting = 0;
            for (int row = 0; row < rows; row++) {
                for (int i = 0; i < columns.length; i++) {
                    binder.bind(statement, i + 1, columns[i], row);
                }
                if (!binder.hasUsedCalendar()) {
                    statement.addBatch();
                    waiting++;
                    continue;
                }
                if (waiting > 0) { // from here on one by one
                    changed = sum(changed, statement.executeBatch());
                    waiting = 0;
                    row--;
                    continue;
                }
                changed = sum(changed, statement.executeUpdate());
            }
            return waiting > 0 ? sum(changed, statement.executeBatch()) : changed;
        } finally {
            running = null;
        }
    }

    private static long sum(long changed, int... counts) {
        long found = changed;
        for (int count : counts) {
            found = count < 0 || found < 0 ? -1 : found + count;
        }
        return found;
    }

    /** The next rows of an open result. */
    public int fetch(int number, int rows) throws SQLException {
        Open one = open.get(number);
        if (one == null || one.columns == null) {
            throw new SQLException("the result is closed", "24000");
        }
        Out out = new Out(4096);
        running = one.statement;
        try {
            if (!one.columns.writeBlock(out, rows)) {
                endResult(one, number);
            }
        } catch (Throwable error) {
            close(number);
            throw error;
        } finally {
            running = null;
        }
        return hand(out);
    }

    /** The statement's next result, as execute() answers; 0 where there is none. */
    public int next(int number, int rows) throws SQLException {
        Open one = open.remove(number);
        if (one == null) {
            return 0;
        }
        running = one.statement;
        try {
            if (one.pending != null) {
                throw one.pending;
            }
            boolean isResult;
            if (one.columns == null) {
                isResult = one.statement.getResultSet() != null;
            } else {
                isResult = one.statement.getMoreResults();
            }
            if (!isResult && one.statement.getUpdateCount() == -1) {
                one.statement.close();
                return 0;
            }
            one.columns = null;
            Out out = new Out(1024);
            answer(out, one, number, isResult, rows, false);
            return hand(out);
        } catch (Throwable error) {
            closeQuietly(one.statement);
            throw error;
        } finally {
            running = null;
        }
    }

    public void close(int number) {
        Open one = open.remove(number);
        if (one != null) {
            closeQuietly(one.statement);
        }
    }

    /** Any thread may call it. */
    public void cancel() throws SQLException {
        Statement statement = running;
        if (statement != null) {
            statement.cancel();
        }
    }

    public void setNetworkTimeout(int milliseconds) throws SQLException {
        connection.setNetworkTimeout(Runnable::run, milliseconds);
    }

    /** Close the connection without waiting for the server, where the driver can. */
    public void abort() throws SQLException {
        try {
            connection.abort(Runnable::run);
        } catch (SQLException | AbstractMethodError | UnsupportedOperationException error) {
            connection.close();
        }
    }

    /** The buffer from its start, behind the numbers of results that nobody wants any more. */
    private ByteBuffer request() {
        binder.begin();
        buffer.clear();
        for (int left = buffer.getInt(); left > 0; left--) {
            close(buffer.getInt());
        }
        return buffer;
    }

    private static String readText(ByteBuffer in) {
        byte[] text = new byte[in.getInt()];
        in.get(text);
        return new String(text, StandardCharsets.UTF_8);
    }

    private void prepareFor(Statement statement, int timeout, int fetchSize) throws SQLException {
        if (timeout > 0) {
            statement.setQueryTimeout(timeout);
        }
        if (fetchSize > 0) {
            statement.setFetchSize(fetchSize);
        }
        running = statement;
    }

    private void answer(Out out, Open one, int number, boolean isResult, int rows, boolean wantsKey)
            throws SQLException {
        out.putByte(0);
        out.putInt(0);
        out.putLong(isResult ? -1 : updateCount(one.statement));
        int flags = 0;
        long key = 0;
        if (wantsKey && !isResult) {
            Long found = key(one.statement);
            if (found != null) {
                flags |= HAS_KEY;
                key = found;
            }
        }
        out.putLong(key);
        int given = number == 0 ? ++lastNumber : number;
        boolean more = false;
        if (isResult) {
            flags |= HAS_RESULT;
            one.columns = new Columns(one.statement.getResultSet());
            int place = out.length;
            out.putInt(0);
            one.columns.writeHeader(out);
            out.putIntAt(place, out.length - place - 4);
            more = one.columns.writeBlock(out, rows);
        }
        open.put(given, one);
        if (!more) {
            endResult(one, given);
        }
        if (open.containsKey(given)) {
            flags |= IS_OPEN;
        }
        out.bytes[0] = (byte) flags;
        out.putIntAt(1, given);
    }

    /** A result was read to its end: close the statement unless it has another one. */
    private void endResult(Open one, int number) {
        one.columns = null;
        try {
            if (one.statement.getMoreResults() || one.statement.getUpdateCount() != -1) {
                return;
            }
        } catch (SQLException error) {
            one.pending = error;
            return;
        }
        close(number);
    }

    private static long updateCount(Statement statement) throws SQLException {
        try {
            return statement.getLargeUpdateCount();
        } catch (UnsupportedOperationException | AbstractMethodError error) {
            return statement.getUpdateCount();
        }
    }

    /** The one number that the database has made for a new row; null where it has made another thing, or several. */
    private static Long key(Statement statement) {
        try (ResultSet keys = statement.getGeneratedKeys()) {
            if (keys == null || !keys.next() || keys.getMetaData().getColumnCount() != 1) {
                return null;
            }
            Object key = keys.getObject(1);
            return key instanceof Number ? Long.valueOf(((Number) key).longValue()) : null;
        } catch (SQLException | RuntimeException error) {
            return null; // the row is there: HSQLDB fails here where the table makes no keys
        }
    }

    private int hand(Out out) {
        boolean fits = out.length <= buffer.capacity();
        if (!fits) {
            room(out.length + out.length / 2);
        }
        buffer.clear();
        buffer.put(out.bytes, 0, out.length);
        return fits ? out.length : -out.length;
    }

    private static void closeQuietly(Statement statement) {
        if (statement != null) {
            try {
                statement.close();
            } catch (SQLException | RuntimeException error) {
                // What is wrong with the connection is found by its next statement.
            }
        }
    }
}
