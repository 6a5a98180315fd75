"""The JVM inside this process: one for all datasources, started at first use.

It leaves the signals to Python: SIGTERM, SIGINT and SIGHUP do what they do without it. A handler in Python runs once
the main thread's Java call has returned.

Each class path has a class loader of its own, so a jar never comes too late, and two datasources may use two versions
of one driver. JPype's addClassPath() would put all jars into one loader, where the first version wins in silence.
"""

from __future__ import annotations

import atexit
import glob
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib import resources
from pathlib import Path
from typing import Any, Final

from txpool.errors import ConfigurationError
from txpool.locks import Lock
from txpool.resources.jdbc.jvm.forks import after_fork_error, forget_after_fork
from txpool.resources.jdbc.jvm.libjvm import find_libjvm, why_not_start

#: Each with what an option begins with that takes its place. By the first two, 0.87 s to the first connection instead
#: of 1.66; by the third, MariaDB's driver does not print each error, with what it is about, beside raising it.
_DEFAULTS: Final = {
    "-XX:+UseSerialGC": r"-XX:\+Use\w+GC",
    "-XX:TieredStopAtLevel=1": r"-XX:[-+]?Tiered",
    "-Dmariadb.logging.disable=true": r"-Dmariadb\.logging\.",
}
#: The JVM is to install no signal handlers. Without it SIGINT also makes the next Java call fail.
_NO_SIGNALS: Final = "-Xrs"
#: From this Java on, JPype's own library is warned of without the option.
_NATIVE_ACCESS: Final = 24

#: The process that uses the JVM; 0 before its start.
_pid = 0
#: The options with which it was started here; None if another library has started it.
_options: tuple[str, ...] | None = None
_starting = Lock()
_loaders: dict[tuple[str, ...], Classes] = {}
_asked: dict[tuple[tuple[str, ...], tuple[str, ...]], Classes] = {}
_threads = threading.local()
#: The methods whose parameters' classes JPype has made, by their class and name.
_ready: set[tuple[Any, str]] = set()
_making = Lock()
#: As java.lang.reflect.Modifier has it.
_STATIC: Final = 8
#: The key of the helper's own loader.
_HELPER: Final = ("txpool",)


def _after_fork() -> None:
    """In a child whose parent has no JVM, another thread may have begun to start one."""
    global _starting, _making
    _starting, _making = Lock(), Lock()


os.register_at_fork(after_in_child=_after_fork)


class Classes:
    """The classes of some jars, and of the Java that runs. Thread-safe."""

    def __init__(self, classpath: tuple[str, ...], loader: Any) -> None:
        #: The files and folders; empty for the JVM's own class path.
        self.classpath = classpath
        self._loader = loader
        self._found: dict[str, Any] = {}

    def load(self, name: str) -> Any:
        """JPype's class of this name. ConfigurationError if these jars have none."""
        found = self._found.get(name)
        if found is None:
            entered()
            found = self._load(name)
            _make_parameters(found)
            self._found[name] = found
        return found

    def _load(self, name: str) -> Any:
        import jpype

        try:
            return jpype.JClass(self._loader.loadClass(name))
        except jpype.JException as error:
            problem = str(error.toString())
        where = ", ".join(self.classpath) or "the JVM's own class path"
        if "ClassNotFoundException" in problem:
            raise ConfigurationError(
                f"no class {name} in {where}: name the driver's jar in jdbc.classpath, and mind the class's spelling"
            )
        if "UnsupportedClassVersionError" in problem:
            raise ConfigurationError(f"the class {name} needs a newer Java than the one that runs: {problem}")
        if "NoClassDefFoundError" in problem:
            raise ConfigurationError(
                f"the class {name} needs another one, which is not in {where} ({problem}): add its jar there"
            )
        raise ConfigurationError(f"the class {name} of {where} cannot be used: {problem}")


def started(classpath: Sequence[str] = (), options: Sequence[str] = ()) -> Classes:
    """The classes of these jars, in this process's JVM, which is started if it does not run yet. Thread-safe.

    `classpath` has files, folders and globs; empty, it is the JVM's own class path. `options` are the JVM's.
    ConfigurationError: JPype, Java or a file is missing, or the JVM runs with other options. InterfaceError: this is a
    forked child of the process whose JVM it is.
    """
    asked = tuple(classpath), tuple(options)
    found = _asked.get(asked)
    if found is None or os.getpid() != _pid:
        with _starting:
            _start(asked[1])
            files = _files(asked[0])
            found = _loaders.get(files)
            if found is None:
                found = _loaders[files] = Classes(files, _make_loader(files))
            _asked[asked] = found
    return found


def entered(method: Any = None) -> None:
    """To be called before Java is: a forked child is refused, and this thread will detach from the JVM when it ends.

    A thread that JPype has attached stays in the JVM for ever. `method` is what will be called, if JPype may not yet
    have made the classes of its parameters.
    """
    if os.getpid() != _pid:
        if _pid:
            raise after_fork_error()
        raise ConfigurationError("the JVM does not run yet: started() was not called")
    if not hasattr(_threads, "detaching"):
        is_main = threading.current_thread() is threading.main_thread()
        _threads.detaching = None if is_main else _Detaching()
    own = getattr(method, "__self__", None)  # a class, and a static method, has none: see `load`
    if own is not None and (key := (type(own), method.__name__)) not in _ready:
        _make_parameters(*key)
        _ready.add(key)


def _make_parameters(owner: Any, name: str | None = None) -> None:
    """Let JPype make the classes of a method's parameters; without a name, of static methods and constructors.

    JPype kills the process if it reads an argument for a class that another thread is just making.
    """
    import jpype

    with _making, suppress(AttributeError, jpype.JException):  # no class of Java's, or one that names a missing class
        methods = owner.class_.getMethods()
        if name is None:
            chosen = [*owner.class_.getConstructors(), *(each for each in methods if each.getModifiers() & _STATIC)]
        else:
            chosen = [each for each in methods if each.getName() == name]
        for method in chosen:
            for each in method.getParameterTypes():
                while jpype.JClass(each)._hints is None:
                    time.sleep(0.0001)


class _Detaching:
    """A thread's own: it is collected in that thread, as the last thing that the thread does."""

    def __init__(self) -> None:
        from jpype import java

        self._detach = java.lang.Thread.detach
        self._pid = _pid

    def __del__(self, current_pid: Callable[[], int] = os.getpid) -> None:
        if current_pid() == self._pid:  # by its own name: at the program's end `os` may be gone
            self._detach()


def helper(name: str) -> Any:
    """One of the classes that txpool ships itself, in the package `txpool.jdbc`."""
    found = _loaders.get(_HELPER)
    if found is None:
        entered()
        with _starting:
            found = _loaders.get(_HELPER)
            if found is None:
                path = _helper_jar()
                found = _loaders[_HELPER] = Classes((path,), _make_loader((path,)))
    return found.load(f"txpool.jdbc.{name}")


def split_options(text: str) -> tuple[str, ...]:
    """The options in a file's text, split as a shell does."""
    return tuple(shlex.split(text))


def split_classpath(text: str) -> tuple[str, ...]:
    """The files and globs in a file's text, between colons, commas or line ends."""
    return tuple(filter(None, (each.strip() for each in re.split(rf"[{os.pathsep},\n]", text))))


def _start(options: tuple[str, ...]) -> None:
    """Start the JVM, or see that the one that runs will do."""
    global _pid, _options
    jpype = _jpype()
    if _pid and _pid != os.getpid():
        raise after_fork_error()
    if jpype.isJVMStarted():
        _pid = os.getpid()
        if options and options != _options:
            _refuse_options(options)
        return
    library, version = find_libjvm(_jpypes_own(jpype))
    chosen = [each for each, other in _DEFAULTS.items() if not any(re.match(other, own) for own in options)]
    if version >= _NATIVE_ACCESS:
        chosen.append("--enable-native-access=ALL-UNNAMED")
    refused = why_not_start(library, [*chosen, *options]) if options else ""
    if not refused:
        try:
            jpype.startJVM(_NO_SIGNALS, *chosen, *options, jvmpath=str(library), interrupt=False)
        except (RuntimeError, OSError) as error:
            refused = f"{error}; its own message is on standard error"
    if refused:
        raise ConfigurationError(
            f"the JVM {library} does not start with jvm.options = {_names(options)}. It says: {refused}"
        )
    forget_after_fork(str(library))
    _pid, _options = os.getpid(), options
    atexit.register(_end)  # it runs before JPype's own, which destroys the JVM


def _end() -> None:
    """Java waits with its end for each thread that is no daemon, such as a driver may have. The process does not."""
    if os.getpid() != _pid:
        return
    from jpype import JClass, config

    threads = JClass("java.lang.Thread")
    own = threads.currentThread()
    if any(not each.isDaemon() and not each.equals(own) for each in threads.getAllStackTraces().keySet()):
        config.destroy_jvm = False


def _jpype() -> Any:
    try:
        import jpype
    except ImportError:
        raise ConfigurationError("JDBC needs the package JPype1: pip install 'txpool[jdbc]'") from None
    return jpype


def _jpypes_own(jpype: Any) -> Path | None:
    """Where JPype finds a Java, which may be neither in JAVA_HOME nor in PATH."""
    with suppress(Exception):
        return Path(jpype.getDefaultJVMPath())
    return None


def _refuse_options(options: tuple[str, ...]) -> None:
    if _options is None:
        runs = "which another library has started: start txpool's first connection before it, or leave out jvm.options"
    else:
        runs = f"with {_names(_options)}: give all datasources of a process the same jvm.options, or only one of them"
    raise ConfigurationError(f"jvm.options has {_names(options)}, but this process's one JVM runs already, {runs}")


def _names(options: tuple[str, ...]) -> str:
    """For messages: a system property's value may be a password."""
    return " ".join(each.split("=")[0] if each.startswith("-D") else each for each in options) or "no options"


def _files(classpath: Sequence[str]) -> tuple[str, ...]:
    """The real paths that the entries stand for, each once."""
    found: dict[str, None] = {}
    for entry in classpath:
        paths = sorted(glob.glob(os.path.expanduser(entry), recursive=True))
        if not paths:
            raise ConfigurationError(f"jdbc.classpath names {entry}, and there is no such file: name the driver's jar")
        found.update((os.path.realpath(each), None) for each in paths)
    return tuple(found)


def _make_loader(files: tuple[str, ...]) -> Any:
    from jpype import JArray, JClass

    loaders = JClass("java.lang.ClassLoader")
    if not files:
        return loaders.getSystemClassLoader()
    url = JClass("java.net.URL")
    urls = [JClass("java.io.File")(each).toURI().toURL() for each in files]
    return JClass("java.net.URLClassLoader")(JArray(url)(urls), loaders.getPlatformClassLoader())


def _helper_jar() -> str:
    """A path of it; if the package is in an archive, that of a copy, which is removed at this process's end."""
    kept = ExitStack()
    path = kept.enter_context(resources.as_file(resources.files("txpool.resources.jdbc") / "java" / "helper.jar"))
    pid = os.getpid()
    atexit.register(lambda: kept.close() if os.getpid() == pid else None)
    return str(path)
