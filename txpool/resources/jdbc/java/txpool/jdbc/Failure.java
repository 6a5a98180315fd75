package txpool.jdbc;

import java.sql.BatchUpdateException;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Set;

/** An exception as texts, since no Java object is to leave txpool. */
public final class Failure {
    private Failure() {}

    /**
     * Five texts for each of it, its next exceptions and its causes: the class, the most specific of java.sql's classes
     * that it has, SQLState, the vendor's code, the message. Then the number of the set of a batch that has failed.
     */
    public static String[] describe(Throwable thrown) {
        List<String> texts = new ArrayList<>();
        Set<Throwable> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        add(thrown, texts, seen);
        texts.add(failedSet(thrown));
        return texts.toArray(new String[0]);
    }

    private static void add(Throwable thrown, List<String> texts, Set<Throwable> seen) {
        if (thrown == null || !seen.add(thrown) || seen.size() > 20) {
            return;
        }
        SQLException sql = thrown instanceof SQLException ? (SQLException) thrown : null;
        texts.add(thrown.getClass().getName());
        texts.add(standardClass(thrown));
        texts.add(sql == null || sql.getSQLState() == null ? "" : sql.getSQLState());
        texts.add(sql == null ? "0" : Integer.toString(sql.getErrorCode()));
        texts.add(thrown.getMessage() == null ? "" : thrown.getMessage());
        if (sql != null) {
            add(sql.getNextException(), texts, seen);
        }
        add(thrown.getCause(), texts, seen);
    }

    private static String standardClass(Throwable thrown) {
        Class<?> one = thrown.getClass();
        while (one != null && !one.getName().startsWith("java.")) {
            one = one.getSuperclass();
        }
        return one == null ? "" : one.getName();
    }

    /** Where the driver tells it: its number in the batch, from 0. */
    private static String failedSet(Throwable thrown) {
        if (!(thrown instanceof BatchUpdateException)) {
            return "";
        }
        int[] counts = ((BatchUpdateException) thrown).getUpdateCounts();
        if (counts == null) {
            return "";
        }
        int failed = -1;
        for (int i = 0; i < counts.length; i++) {
            if (counts[i] == Statement.EXECUTE_FAILED) {
                if (failed >= 0) {
                    return "";
                }
                failed = i;
            }
        }
        return Integer.toString(failed >= 0 ? failed : counts.length);
    }
}
