import com.arjuna.ats.arjuna.common.CoreEnvironmentBean;
import com.arjuna.ats.arjuna.common.ObjectStoreEnvironmentBean;
import com.arjuna.ats.internal.jta.transaction.arjunacore.TransactionSynchronizationRegistryImple;
import com.arjuna.common.internal.util.propertyservice.BeanPopulator;
import io.agroal.api.AgroalDataSource;
import io.agroal.api.configuration.supplier.AgroalDataSourceConfigurationSupplier;
import io.agroal.api.security.NamePrincipal;
import io.agroal.api.security.SimplePassword;
import io.agroal.narayana.NarayanaTransactionIntegration;
import jakarta.transaction.TransactionManager;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.PreparedStatement;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.atomic.AtomicLong;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;
import org.postgresql.xa.PGXADataSource;

/**
 * One row in each of two PostgreSQL databases, in a transaction of Narayana over Agroal's pools and pgJDBC's XA.
 *
 * Arguments: the object store's folder, the most threads, the user, the databases' JDBC urls. The passwords
 * are in PASSWORD_0, PASSWORD_1, in the order of the urls. Without urls, two resources take part that do nothing. For each line "threads transactions" on stdin, it runs as many transactions and prints the seconds.
 */
public class TwoDatabases {
    private static final String UPDATE = "update t set a = a + 1 where id = ?";
    private static TransactionManager manager;
    private static final List<AgroalDataSource> databases = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        for (String name : new String[] {null, "communicationStore", "stateStore"}) {
            BeanPopulator.getNamedInstance(ObjectStoreEnvironmentBean.class, name).setObjectStoreDir(arguments[0]);
        }
        BeanPopulator.getDefaultInstance(CoreEnvironmentBean.class).setNodeIdentifier("bench");
        manager = com.arjuna.ats.jta.TransactionManager.transactionManager();
        int most = Integer.parseInt(arguments[1]);
        for (int i = 3; i < arguments.length; i++) {
            String url = arguments[i];
            // It keeps a transaction's connection by itself, so one that two pools shared would give both the same.
            var integration = new NarayanaTransactionIntegration(manager, new TransactionSynchronizationRegistryImple());
            String password = System.getenv("PASSWORD_" + (i - 3));
            databases.add(AgroalDataSource.from(new AgroalDataSourceConfigurationSupplier()
                .connectionPoolConfiguration(pool -> pool
                    .initialSize(most).minSize(most).maxSize(most)
                    .transactionIntegration(integration)
                    .connectionFactoryConfiguration(factory -> factory
                        .connectionProviderClass(PGXADataSource.class)
                        .jdbcUrl(url)
                        .principal(new NamePrincipal(arguments[2]))
                        .credential(new SimplePassword(password))))));
        }
        var lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            System.out.println(seconds(Integer.parseInt(words[0]), Integer.parseInt(words[1])));
        }
        System.exit(0);
    }

    private static double seconds(int threads, int transactions) throws Exception {
        var started = new AtomicLong();
        var start = new CyclicBarrier(threads, () -> started.set(System.nanoTime()));
        var failures = new ArrayList<Throwable>();
        List<Thread> workers = new ArrayList<>();
        for (int row = 0; row < threads; row++) {
            int own = row;
            var worker = new Thread(() -> {
                try {
                    start.await();
                    for (int i = 0; i < transactions / threads; i++) {
                        transaction(own);
                    }
                } catch (Throwable error) {
                    synchronized (failures) {
                        failures.add(error);
                    }
                }
            });
            workers.add(worker);
            worker.start();
        }
        for (Thread worker : workers) {
            worker.join();
        }
        double seconds = (System.nanoTime() - started.get()) / 1e9;
        if (!failures.isEmpty()) {
            throw new IllegalStateException("a transaction has failed", failures.get(0));
        }
        return seconds;
    }

    private static void transaction(int row) throws Exception {
        manager.begin();
        for (int i = 0; databases.isEmpty() && i < 2; i++) {
            manager.getTransaction().enlistResource(new Nothing());
        }
        for (AgroalDataSource database : databases) {
            try (var connection = database.getConnection();
                    PreparedStatement update = connection.prepareStatement(UPDATE)) {
                update.setInt(1, row);
                update.executeUpdate();
            }
        }
        manager.commit();
    }

    /** A resource that does nothing, and says yes. */
    private static class Nothing implements XAResource {
        public void start(Xid xid, int flags) {}

        public void end(Xid xid, int flags) {}

        public int prepare(Xid xid) {
            return XA_OK;
        }

        public void commit(Xid xid, boolean onePhase) {}

        public void rollback(Xid xid) {}

        public void forget(Xid xid) {}

        public Xid[] recover(int flag) {
            return new Xid[0];
        }

        public boolean isSameRM(XAResource other) {
            return this == other;
        }

        public int getTransactionTimeout() {
            return 0;
        }

        public boolean setTransactionTimeout(int seconds) {
            return false;
        }
    }
}
