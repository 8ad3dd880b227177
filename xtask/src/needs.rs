//! What the tests need beside the Rust toolchain, and how it gets onto the machine.
//!
//! Nothing is installed that is there already. Packages come from the system's package manager, as root or through
//! sudo; where that is impossible the words say which packages to install by hand.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::{exists, output, run};

/// Version of redis-py for the client tests.
const REDIS_PY: &str = "redis==8.1.0";

/// A program, the Debian package that holds it, and what it is for.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("tclsh", "tcl", "runs Redis's own test suite"),
    ("redis-server", "redis-server", "the reference that replies are compared with"),
    ("redis-cli", "redis-tools", "the client most people have"),
    ("redis-benchmark", "redis-tools", "the load generator most people have"),
    ("python3", "python3", "runs the tests with the Python client"),
    ("cc", "gcc", "compiles the library that makes disk calls fail"),
];

/// Sees to it that every program is there, and answers the Python interpreter that can import `redis`.
pub fn provide_all() -> Result<PathBuf> {
    provide_programs()?;
    provide_python()
}

/// Installs the packages of the programs that are missing.
pub fn provide_programs() -> Result<()> {
    let missing: Vec<_> = PROGRAMS.iter().filter(|(program, ..)| !exists(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for (program, package, purpose) in &missing {
        eprintln!("{program} is missing ({purpose}); installing the package {package}");
    }
    let mut packages: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    install(&packages)
}

/// Installs packages of the system.
pub fn install(packages: &[&str]) -> Result<()> {
    let by_hand = format!("please install by hand, then run this again: {}", packages.join(" "));
    if !exists("apt-get") {
        bail!("this machine has no apt-get; {by_hand}");
    }
    let apt = || -> Result<Command> {
        let mut command = if output(Command::new("id").arg("-u"))?.trim() == "0" {
            Command::new("apt-get")
        } else if exists("sudo") {
            let mut sudo = Command::new("sudo");
            sudo.args(["--non-interactive", "apt-get"]);
            sudo
        } else {
            bail!("apt-get needs root or sudo; {by_hand}");
        };
        // A freshly installed redis-server package would start its service; the run level keeps it from doing so.
        command.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1").stdin(Stdio::null());
        Ok(command)
    };
    run(apt()?.args(["-qq", "update"])).with_context(|| by_hand.clone())?;
    run(apt()?.args(["-qq", "install", "--yes", "--no-install-recommends"]).args(packages)).context(by_hand)
}

/// A Python with the client library: the virtual environment in the cache, which has the version named here; where none
/// can be made, the system's, with any version that it has or that the distribution packages.
fn provide_python() -> Result<PathBuf> {
    let imports = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-c", "import redis"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let environment = crate::cache().join("python");
    let inside = environment.join("bin/python3");
    let has_version = |python: &PathBuf| {
        let check = format!("import redis; assert 'redis==' + redis.__version__ == '{REDIS_PY}'");
        Command::new(python).args(["-c", &check]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    for candidate in [&inside, &PathBuf::from("python3")] {
        if has_version(candidate) {
            return Ok(candidate.clone());
        }
    }
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&environment)).and_then(|()| {
        run(Command::new(&inside).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", REDIS_PY]))
    });
    if made.is_ok() && has_version(&inside) {
        return Ok(inside);
    }
    let system = PathBuf::from("/usr/bin/python3");
    for candidate in [&PathBuf::from("python3"), &system] {
        if imports(candidate) {
            return Ok(candidate.clone());
        }
    }
    install(&["python3-redis"])?;
    if !imports(&system) {
        bail!("python3 cannot import redis, neither from {} nor from python3-redis", environment.display());
    }
    Ok(system)
}
