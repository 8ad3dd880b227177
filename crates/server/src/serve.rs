//! `holdfast serve`: turns a command line and a configuration file into a running server.
//!
//! Both are read as `redis-server` reads them: `--name value [value …]` for every parameter, an optional file as the
//! first word, and in files one parameter a line, with quotes, comments and `include`.

mod bring_in;
pub mod check;
mod directives;

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use edge::{ClusterOptions, ConsoleOptions, Ended, Invited, ListenOptions, Options, SentinelOptions, Token};
use node::acl::Users;
use node::settings::Settings;
use stdx::{Level, Levels};

use self::bring_in::BringIn;
use self::directives::{Class, fate, is_news, own_name};
use crate::words::split_words;

/// Configuration files that include one another may nest so deep.
const INCLUDE_DEPTH_MAX: usize = 16;

/// A token may be said here instead of on the command line.
pub const TOKEN_VARIABLE: &str = "HOLDFAST_TOKEN";

/// Where a server listens unless told.
const BIND_DEFAULT: &str = "127.0.0.1 -::1";

/// In the data directory: what CONFIG REWRITE has written where there was no other file. Read where none is named.
const OWN_FILE: &str = "holdfast.conf";

/// Directives with values that are neither shown nor logged.
const SECRETS: &[&str] =
    &["masterauth", "primaryauth", "requirepass", "tls-client-key-file-pass", "tls-key-file-pass", "token", "user"];

/// Printed by `holdfast serve --help`.
const HELP: &str = "\
Runs a server.

Usage: holdfast serve [FILE] [--name value [value …]]…

  FILE                    a configuration file in Redis's form, as --config
  --config FILE           the same
  --port N                TCP port                                      [6379]
  --bind ADDRESS…         where to listen: IPv4, IPv6, * or ::*;
                          with a leading - it may be missing            [127.0.0.1 -::1]
  --data-dir DIR          directory of the data                         [holdfast-data]
  --import FILE           with an empty directory: import an RDB or AOF file of Redis or Valkey, or a directory of
                          them, before clients are served; no effect once that is done
  --join HOST:PORT[,HOST:PORT]  with an empty directory: join the cluster of the first node that answers at such a
                          cluster port; a member looks there for nodes that it cannot find
  --token TOKEN           the invitation that --join needs: see `holdfast cluster invite`; HOLDFAST_TOKEN and
                          --token-file FILE are not visible in lists of processes
  --cluster-port N        TCP port for other nodes                      [port + 10000]
  --cluster-announce-ip A address that others use for this node         [from --bind, or detected]
  --zone NAME             the rack or building of the node: replicas of a group are put in different zones [none]
  --replicas N            replicas of each group, if there are so many nodes [3]
  --replace-after SECONDS others replace a node that nobody has heard for so long; 0 for never [3600]
  --follow HOST:PORT[,HOST:PORT]  follow the cluster of these nodes, and accept no writes until
                          `holdfast site promote`; rediss://HOST:PORT with TLS; log in with --masteruser and
                          --masterauth                                  [none]
  --site-backlog-size BYTES  keep so many bytes of changes on disk, for a second cluster that follows [0: none]
  --archive ADDRESS       keep the log of all changes in file:///DIRECTORY, which must exist, or in
                          s3://BUCKET/PREFIX                            [none]
  --archive-key-file FILE encrypt it with the key in this file          [none]
  --backup-dir DIR        make a backup in this directory every --backup-interval-s seconds [86400], and keep
                          --backup-keep of them [7]
  --console-port N        serve the console, a page for browsers        [none]
  --sentinel-port N       answer clients that look for a Sentinel       [none]
  --sentinel-master-name NAME  the name of the master that they ask for [mymaster]
  --metrics-port N        serve GET /metrics, for Prometheus            [none]
  --tls-port N            TCP port for clients that speak TLS           [none]
  --tls-cert-file FILE    certificate and --tls-key-file FILE for it, to be shown to clients and nodes
  --tls-ca-cert-file FILE the authorities to trust
  --tls-auth-clients WHO  whether clients need one: yes, no, optional   [yes]
  --tls-cluster no        no encryption between nodes, and no certificates [auto]
  --cluster-compression-level N  compress links between nodes, from 1 (fast) to 19 (small) [0: off]
  --appendfsync WHEN      an acknowledged write is on disk: always (before it is acknowledged),
                          everysec (within a second), no (when the system writes it) [always]
  --cores N               threads that serve clients                    [one per processor, at most 4 or half of them]
  --level-max N           behave like a version that knows no higher level, to test an upgrade [all known]
  --unixsocket PATH       also listen on this socket
  --unixsocketperm MODE   its permissions, as in 700
  --requirepass PASSWORD  password of the user default; --requirepass-file FILE is not visible in lists of processes
  --maxmemory BYTES       as in 2gb; see --maxmemory-policy             [no limit]
  --maxmemory-clients B   memory of all clients together                [a tenth of the machine's]
  --maxclients N          most clients at a time                        [10000]
  --logfile FILE          write the log to this file                    [standard output]
  --log-format FORMAT     text, or json: one object per line            [text]

Every parameter that CONFIG GET * lists can be given in the same way, here or in the file. The last value counts,
and the command line takes precedence over the file.

SIGTERM and Control-C stop the server cleanly; a second Control-C stops it at once.
";

/// A server to be started.
#[derive(Debug)]
struct Plan {
    settings: Settings,
    data_directory: PathBuf,
    core_count: Option<u16>,
    /// The levels that it must act as if it knew no others.
    levels: Levels,
    config_file: Option<PathBuf>,
    /// `save` and the like, which may stand several times, and have stood already.
    accumulated: Vec<&'static str>,
    /// `user` lines.
    users: Vec<Directive>,
    /// Nodes of the cluster to be joined, or to be looked for.
    join: Vec<String>,
    /// What lets it in there.
    token: Option<Token>,
    /// Files of a Redis that a new directory is filled with.
    import: Option<PathBuf>,
    /// What becomes of each directive.
    verdicts: Vec<Verdict>,
    /// What cannot be obeyed is only noted.
    is_trial: bool,
}

/// What becomes of a directive.
#[derive(Clone, Debug)]
struct Verdict {
    directive: Directive,
    class: Class,
    /// What to say of it.
    text: String,
}

impl Verdict {
    fn value(&self) -> String {
        self.directive.words[1..].join(" ")
    }

    /// For the log, if there is something that the author of the configuration should know.
    fn remark(&self) -> Option<String> {
        let Directive { words, place, .. } = &self.directive;
        let [name, ..] = &words[..] else { return None };
        match self.class {
            Class::Told => Some(format!("{place}: {name} {} is obeyed: {}", self.value(), self.text)),
            Class::WithoutEffect if is_news(name, &self.value()) => {
                Some(format!("{place}: {name} has no effect here: {}", self.text))
            }
            _ => None,
        }
    }
}

/// Runs `holdfast serve` with the words behind `serve`.
///
/// # Errors
/// One line for the operator.
pub fn run(words: &[String]) -> Result<(), String> {
    let Some((mut options, import)) = options(words)? else {
        say!("{HELP}");
        return Ok(());
    };
    end_with_a_panic();
    check_folder(&options.data_directory).inspect_err(|why| edge::log_failure(&options.settings, why))?;
    options.source = crate::migrate::replica::source_of(&options.data_directory)
        .map_err(|why| format!("{why:#}"))
        .inspect_err(|why| edge::log_failure(&options.settings, why))?;
    let settings = &options.settings;
    let is_of_several = !options.cluster.join.is_empty() || settings.cluster_enabled;
    let has_sites = !settings.get("follow").is_empty() || settings.keeps_site_backlog;
    if let Some(source) = options.source.as_ref().filter(|_| is_of_several || has_sites) {
        return Err(format!(
            "this server follows {}:{} by REPLICAOF, and such a server is no member of a cluster and has no second site: \
             start it without --join, --cluster-enabled, --follow and --site-backlog-size, and say REPLICAOF NO ONE first",
            source.host, source.port
        ));
    }
    let (settings, directory) = (options.settings.clone(), options.data_directory.clone());
    let logged = |why: String| {
        edge::log_failure(&settings, &why);
        why
    };
    if let Some(import) = BringIn::planned(&directory, import).map_err(logged)? {
        return match import.run(options).map_err(|error| logged(format!("{error:#}")))? {
            true => begin_anew(words, None),
            false => Ok(()),
        };
    }
    match edge::run(options).map_err(|fault| fault.to_string())? {
        Ended::Stopped => Ok(()),
        Ended::Again => begin_anew(words, None),
        Ended::Joins(invited) => begin_anew(words, Some(&invited)),
    }
}

/// Lets a panic of any thread end the process, in every build: what a core was about to do is unknown, and clients must
/// not wait for it.
fn end_with_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

/// Becomes a new process of the same number, with the same words and those that bring it to a cluster.
fn begin_anew(words: &[String], invited: Option<&Invited>) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|cause| format!("cannot find the own program: {cause}"))?;
    let mut command = Command::new(own);
    command.arg("serve").args(words);
    if let Some(Invited { address, token }) = invited {
        command.args(["--join", address]);
        match token {
            Some(token) => command.env(TOKEN_VARIABLE, token.to_text()),
            None => command.env_remove(TOKEN_VARIABLE),
        };
    }
    let cause = command.exec();
    Err(format!("cannot start over: {cause}"))
}

/// What to run; nothing if help is asked for. What is wrong with it is in the log as well, if one is named before the
/// mistake.
fn options(words: &[String]) -> Result<Option<(Options, Option<PathBuf>)>, String> {
    if words.iter().any(|word| word == "--help" || word == "-h") {
        return Ok(None);
    }
    let mut plan = Plan::new()?;
    let outcome = plan.fill(words);
    let settings = plan.settings.clone();
    let import = plan.import.clone();
    let options = outcome.and_then(|()| plan.into_options());
    options.inspect_err(|why| edge::log_failure(&settings, why)).map(|options| Some((options, import)))
}

/// One parameter with its values, and where it was given.
#[derive(Clone, Debug)]
struct Directive {
    /// Name, in lower case, and values. Never empty.
    words: Vec<String>,
    /// As it was given.
    text: String,
    /// `the command line`, or `FILE, line N`.
    place: String,
}

impl Directive {
    fn complain(&self, why: &str) -> String {
        match self.words.first() {
            Some(name) if SECRETS.contains(&name.as_str()) => format!("{}: '{name} …': {why}", self.place),
            _ => format!("{}: '{}': {why}", self.place, self.text),
        }
    }
}

/// Parameters that are no settings.
const OF_SERVE: [&str; 8] =
    ["cores", "config", "import", "join", "level-max", "requirepass-file", "token", "token-file"];

/// The parameter that was meant, if one is written nearly like this.
fn similar(settings: &Settings, name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let all = settings.iter().map(|(known, _)| known).chain(OF_SERVE);
    let nearest = all.map(|known| (strsim::damerau_levenshtein(known, &name), known)).min()?;
    (nearest.0 <= 1.max(name.len() / 4)).then_some(nearest.1)
}

/// A data directory may be missing; it is nothing else than a directory.
fn check_folder(folder: &Path) -> Result<(), String> {
    let why = match fs::metadata(folder) {
        Ok(found) if !found.is_dir() => "this is not a directory",
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => "a part of this path is not a directory",
        _ => return Ok(()),
    };
    Err(format!("data directory {}: {why}: choose another one with --data-dir", folder.display()))
}

/// What is wrong with values of a parameter that takes another number of them.
fn miscounted(values: &[String]) -> &'static str {
    if values.is_empty() { "needs a value" } else { "wrong number of arguments" }
}

/// Cuts the command line into parameters. A word with two dashes begins one; the first word may be a file.
fn directives(words: &[String]) -> Result<Vec<Directive>, String> {
    let place = "the command line".to_owned();
    let mut directives: Vec<Directive> = Vec::new();
    for word in words {
        if let Some(name) = word.strip_prefix("--").filter(|name| !name.is_empty()) {
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            let words = [name.to_lowercase()].into_iter().chain(value).collect();
            directives.push(Directive { words, text: word.clone(), place: place.clone() });
        } else if let Some(directive) = directives.last_mut() {
            directive.words.push(word.clone());
            directive.text.push(' ');
            directive.text.push_str(if word.is_empty() { "\"\"" } else { word });
        } else if word.starts_with('-') && word.len() > 1 {
            // Short options are those of the other verbs.
            return Err(format!(
                "{place}: '{word}': Unknown option; those of serve begin with two dashes, as in --port"
            ));
        } else {
            let words = vec!["config".to_owned(), word.clone()];
            // What follows the file belongs to no parameter: the next plain word is a mistake of the user's.
            directives.push(Directive { words, text: word.clone(), place: place.clone() });
        }
    }
    Ok(directives)
}

impl Plan {
    fn new() -> Result<Self, String> {
        let mut settings = Settings::default();
        // Redis listens on every address and turns strangers away; nothing listens here unless it is asked to.
        settings.adopt("bind", BIND_DEFAULT)?;
        // Each client's memory is bounded, and so is that of all together.
        settings.adopt("maxmemory-clients", &(edge::memory_allowed_bytes() / 10).to_string())?;
        Ok(Self {
            settings,
            data_directory: PathBuf::from("holdfast-data"),
            core_count: None,
            levels: Levels::KNOWN,
            config_file: None,
            accumulated: Vec::new(),
            users: Vec::new(),
            join: Vec::new(),
            token: None,
            import: None,
            verdicts: Vec::new(),
            is_trial: false,
        })
    }

    /// Reads the command line, and the files that it names.
    fn fill(&mut self, words: &[String]) -> Result<(), String> {
        let mut directives = directives(words)?;
        if !directives.iter().any(|directive| directive.words[0] == "config") {
            let is_folder = |directive: &&Directive| matches!(directive.words[0].as_str(), "data-dir" | "dir");
            let folder = directives.iter().rfind(is_folder).and_then(|directive| directive.words.get(1));
            let own = folder.map_or_else(|| self.data_directory.clone(), PathBuf::from).join(OWN_FILE);
            if own.is_file() {
                self.read_file(&own, 0)?;
                self.accumulated.clear();
            }
        }
        // The file comes first, at any place in the command line, so that the command line has the last word.
        directives.sort_by_key(|directive| directive.words[0] != "config");
        for directive in &directives {
            if directive.words[0] == "config" {
                let [_, file] = &directive.words[..] else {
                    return Err(directive.complain("needs the name of a file"));
                };
                self.config_file = Some(PathBuf::from(file));
                self.read_file(Path::new(file), 0)?;
                // What a file has gathered, the command line replaces.
                self.accumulated.clear();
            } else {
                self.judge(directive)?;
            }
        }
        Ok(())
    }

    fn read_file(&mut self, path: &Path, depth: usize) -> Result<(), String> {
        if depth > INCLUDE_DEPTH_MAX {
            return Err(format!("{}: configuration files include one another without end", path.display()));
        }
        let text = fs::read_to_string(path)
            .map_err(|cause| format!("cannot read the configuration file {}: {cause}", path.display()))?;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = format!("{}, line {}", path.display(), number + 1);
            let mut directive = Directive { words: Vec::new(), text: line.to_owned(), place };
            let Some(words) = split_words(line) else {
                const WHY: &str = "unbalanced quotes in configuration line";
                directive.words.extend(line.split_whitespace().next().map(str::to_owned));
                self.refuse(&directive, WHY)?;
                continue;
            };
            directive.words = words;
            let Some(name) = directive.words.first_mut() else { continue };
            *name = name.to_lowercase();
            if name == "include" {
                for file in &directive.words[1..] {
                    let read = self.read_file(Path::new(file), depth + 1);
                    match read {
                        Err(why) if self.is_trial => self.refuse(&directive, &why)?,
                        read => read?,
                    }
                }
            } else {
                self.judge(&directive)?;
            }
        }
        Ok(())
    }

    /// Notes that a directive cannot be obeyed; unless this is a trial, that is the end.
    fn refuse(&mut self, directive: &Directive, why: &str) -> Result<(), String> {
        if !self.is_trial {
            return Err(directive.complain(why));
        }
        self.verdicts.push(Verdict { directive: directive.clone(), class: Class::Refused, text: why.to_owned() });
        Ok(())
    }

    /// Obeys a directive if it is one that is obeyed, and notes what becomes of it.
    fn judge(&mut self, directive: &Directive) -> Result<(), String> {
        let [name, values @ ..] = &directive.words[..] else { return Ok(()) };
        let value = values.join(" ");
        let (class, text) = fate(name, &value).unwrap_or((Class::Obeyed, ""));
        if class == Class::Refused {
            return self.refuse(directive, text);
        }
        // Those that are no parameters here have nothing that could be set.
        if class == Class::Obeyed || Settings::parameter(own_name(name)).is_some() {
            match self.obey(directive) {
                Err(why) if self.is_trial => {
                    let why = why.rsplit("': ").next().unwrap_or(&why).to_owned();
                    return self.refuse(directive, &why);
                }
                outcome => outcome?,
            }
        }
        self.verdicts.push(Verdict { directive: directive.clone(), class, text: text.to_owned() });
        Ok(())
    }

    /// Lines for the log.
    fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self.verdicts.iter().filter_map(Verdict::remark).collect();
        let is_silent = |verdict: &&Verdict| verdict.class == Class::WithoutEffect && verdict.remark().is_none();
        let count = self.verdicts.iter().filter(is_silent).count();
        if let (Some(file), 1..) = (&self.config_file, count) {
            let file = file.display();
            remarks.push(format!(
                "{file}: {count} directives have no effect here and ask for nothing unusual: holdfast config check \
                 {file} lists them"
            ));
        }
        remarks
    }

    fn obey(&mut self, directive: &Directive) -> Result<(), String> {
        let [name, values @ ..] = &directive.words[..] else { return Ok(()) };
        match name.as_str() {
            "data-dir" | "dir" => {
                let [directory] = values else { return Err(directive.complain(miscounted(values))) };
                self.data_directory = PathBuf::from(directory);
            }
            "join" => {
                let addresses = values.iter().flat_map(|value| value.split(','));
                let addresses: Vec<String> =
                    addresses.map(str::to_owned).filter(|address| !address.is_empty()).collect();
                if addresses.is_empty() || !addresses.iter().all(|address| address.contains(':')) {
                    return Err(directive.complain("needs HOST:PORT[,HOST:PORT]"));
                }
                self.join = addresses;
            }
            "import" => {
                let [path] = values else { return Err(directive.complain("needs the name of a file or a directory")) };
                self.import = Some(PathBuf::from(path));
            }
            "token" => {
                let [text] = values else { return Err(directive.complain("needs a token")) };
                // The words themselves are a secret.
                self.token = Some(Token::parse(text).map_err(|why| format!("{}: token: {why}", directive.place))?);
            }
            "token-file" => {
                let [file] = values else { return Err(directive.complain("needs the name of a file")) };
                let text = fs::read_to_string(file).map_err(|cause| directive.complain(&cause.to_string()))?;
                self.token = Some(Token::parse(&text).map_err(|why| directive.complain(&why))?);
            }
            "requirepass-file" => {
                let [file] = values else { return Err(directive.complain("needs the name of a file")) };
                let text = fs::read_to_string(file).map_err(|cause| directive.complain(&cause.to_string()))?;
                let password = text.trim_end_matches(['\n', '\r']);
                // An empty password would let everybody in, and a file that was not written yet is empty.
                if password.is_empty() || password.contains('\n') {
                    return Err(directive.complain("needs a password in one line"));
                }
                self.settings.adopt("requirepass", password).map_err(|why| directive.complain(&why))?;
            }
            "cores" => {
                let count = match values {
                    [count] => count.parse().ok().filter(|count| (1..=1024).contains(count)),
                    _ => None,
                };
                self.core_count = Some(count.ok_or_else(|| directive.complain("needs a number from 1 to 1024"))?);
            }
            "level-max" => {
                let known = Levels::KNOWN;
                let level = match values {
                    [level] => level.parse().ok().map(Level).filter(|level| known.contains(*level)),
                    _ => None,
                };
                let wrong = || directive.complain(&format!("needs one of the {known}"));
                self.levels = known.up_to(level.ok_or_else(wrong)?);
            }
            "user" => self.users.push(directive.clone()),
            // The name of Valkey for our `text`.
            "log-format" if values == ["legacy"] => self.set(directive, name, "text")?,
            _ => self.set(directive, own_name(name), &values.join(" "))?,
        }
        Ok(())
    }

    fn set(&mut self, directive: &Directive, name: &str, value: &str) -> Result<(), String> {
        if directive.words.len() < 2 {
            return Err(directive.complain("needs a value"));
        }
        // `save` may stand in several lines, which count together; the first replaces the default.
        let gathered = match name {
            "save" if self.accumulated.contains(&"save") && !value.is_empty() => {
                format!("{} {value}", self.settings.get("save")).trim().to_owned()
            }
            _ => value.to_owned(),
        };
        if name == "save" {
            self.accumulated.push("save");
        }
        let similar = if Settings::parameter(name).is_none() { similar(&self.settings, name) } else { None };
        let advice = similar.map_or(String::new(), |meant| format!("; did you mean '{meant}'?"));
        self.settings.set(name, &gathered).map_err(|why| directive.complain(&format!("{why}{advice}")))
    }

    /// All users: the default user with `requirepass`, and what `user` lines or the file of users say.
    fn users(&self) -> Result<Users, String> {
        let all_channels = self.settings.all_channels;
        let file = self.settings.get("aclfile");
        if !file.is_empty() {
            if let Some(directive) = self.users.first() {
                return Err(directive.complain("users are configured here or in the aclfile, not in both"));
            }
            let text = fs::read(file).map_err(|cause| format!("cannot read the aclfile {file}: {cause}"))?;
            return Users::from_file(file, &text, all_channels);
        }
        let mut users = Users::clone(&self.settings.users);
        let mut seen: Vec<&str> = Vec::new();
        for directive in &self.users {
            let name = directive.words.get(1).map_or("", String::as_str);
            users
                .configure(&directive.words[1..], all_channels, seen.contains(&name))
                .map_err(|why| directive.complain(&why))?;
            seen.push(name);
        }
        Ok(users)
    }

    fn into_options(mut self) -> Result<Options, String> {
        let remarks = self.remarks();
        // Anyone who changes directories later still means this one.
        let config_file = self.config_file.take().unwrap_or_else(|| self.data_directory.join(OWN_FILE));
        let config_file = std::path::absolute(&config_file).unwrap_or(config_file);
        self.settings.users = Arc::new(self.users()?);
        if !self.settings.get("follow").is_empty() {
            // Until it is known how far this cluster is, clients change nothing.
            self.settings.set("site-read-only", "yes")?;
        }
        if self.import.is_some() && !(self.join.is_empty() && self.settings.get("follow").is_empty()) {
            return Err(
                "--import fills the directory of a new cluster: --join and --follow bring other data".to_owned()
            );
        }
        let core_count = self
            .core_count
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, |count| default_core_count(count.get())));
        // What CONFIG GET shows.
        self.settings.adopt("cores", &core_count.to_string())?;
        self.settings.adopt("data-dir", &self.data_directory.display().to_string())?;
        let absolute = std::path::absolute(&self.data_directory).unwrap_or_else(|_| self.data_directory.clone());
        self.settings.adopt("dir", &absolute.display().to_string())?;
        let text = |name: &str| self.settings.get(name);
        let path = |name: &str| Some(text(name)).filter(|path| !path.is_empty()).map(PathBuf::from);
        let unix_permissions = match text("unixsocketperm") {
            "" | "0" => None,
            mode => Some(u32::from_str_radix(mode, 8).map_err(|_| format!("unixsocketperm: '{mode}' is no mode"))?),
        };
        let listen = ListenOptions {
            addresses: text("bind").split_whitespace().map(str::to_owned).collect(),
            port: text("port").parse().map_err(|_| "port: not a number".to_owned())?,
            tls_port: text("tls-port").parse().map_err(|_| "tls-port: not a port".to_owned())?,
            backlog: text("tcp-backlog").parse().unwrap_or(511),
            unix_socket: path("unixsocket"),
            unix_permissions,
        };
        let token = match (self.token, std::env::var(TOKEN_VARIABLE)) {
            (None, Ok(text)) if !text.trim().is_empty() && !self.join.is_empty() => {
                Some(Token::parse(&text).map_err(|why| format!("{TOKEN_VARIABLE}: {why}"))?)
            }
            (token, _) => token,
        };
        if !text("archive").is_empty() {
            archive::Place::parse(text("archive"))
                .and_then(|place| place.check())
                .map_err(|why| format!("archive: {why}"))?;
        }
        let port_of = |name: &str| text(name).parse().map_err(|_| format!("{name}: not a port"));
        // Clients are told one port: see `edge::run`.
        let announced = match (text("port"), text("tls-cluster"), text("tls-port")) {
            ("0", ..) => "cluster-announce-tls-port",
            (_, "yes", port) if port != "0" => "cluster-announce-tls-port",
            _ => "cluster-announce-port",
        };
        let cluster = ClusterOptions {
            port: text("cluster-port").parse().map_err(|_| "cluster-port: not a port".to_owned())?,
            announce_host: text("cluster-announce-ip").to_owned(),
            announce_ports: [port_of(announced)?, port_of("cluster-announce-bus-port")?],
            join: self.join,
            token,
        };
        Ok(Options {
            listen,
            cluster,
            core_count,
            metrics_port: text("metrics-port").parse().map_err(|_| "metrics-port: not a port".to_owned())?,
            console: ConsoleOptions {
                port: text("console-port").parse().map_err(|_| "console-port: not a port".to_owned())?,
                hosts: text("console-hosts").split_whitespace().map(str::to_owned).collect(),
            },
            sentinel: SentinelOptions {
                port: text("sentinel-port").parse().map_err(|_| "sentinel-port: not a port".to_owned())?,
                master_name: text("sentinel-master-name").to_owned(),
            },
            log_file: path("logfile"),
            pid_file: path("pidfile"),
            remarks,
            config_file: config_file.display().to_string(),
            data_directory: self.data_directory,
            version: env!("CARGO_PKG_VERSION"),
            levels: self.levels,
            allocated: crate::allocator::allocated,
            back_up: crate::backup::schedule::run,
            replicate: crate::migrate::replica::run,
            source: None,
            begin_with: None,
            settings: self.settings,
        })
    }
}

/// How many cores a server has on so many processors, unless told. Up to four, one for each. With more, half as many:
/// the kernel, the log, links to other nodes and clients on the same machine need processors as well, and each further
/// core makes every request dearer.
fn default_core_count(processors: usize) -> u16 {
    const ALL_UP_TO: usize = 4;
    const CORES_MAX: usize = 1_024;
    let count = (processors / 2).clamp(processors.min(ALL_UP_TO), CORES_MAX);
    u16::try_from(count.max(1)).expect("not that many")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        split_words(line).expect("balanced quotes")
    }

    #[track_caller]
    fn plan(line: &str) -> Plan {
        let mut plan = Plan::new().expect("defaults are good");
        plan.fill(&words(line)).unwrap_or_else(|why| panic!("{line}: {why}"));
        plan
    }

    fn complaint(line: &str) -> String {
        Plan::new().expect("defaults are good").fill(&words(line)).expect_err(line)
    }

    /// A file of its own for each test.
    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("holdfast-serve-{}-{name}", std::process::id()));
        fs::write(&path, text).expect("a temporary file");
        path
    }

    #[test]
    fn many_processors_are_not_all_for_cores() {
        let counts = [1, 2, 3, 4, 5, 8, 9, 16, 64, 100_000].map(default_core_count);
        assert_eq!(counts, [1, 2, 3, 4, 4, 4, 4, 8, 32, 1_024]);
    }

    #[test]
    fn parameters_take_any_number_of_values() {
        let plan = plan(r#"--port 7000 --BIND 127.0.0.1 ::1 --save "" --appendfsync everysec --cores 3 --dir /tmp/x"#);
        assert_eq!(plan.settings.get("port"), "7000");
        assert_eq!(plan.settings.get("bind"), "127.0.0.1 ::1");
        assert_eq!(plan.settings.get("save"), "");
        assert_eq!(plan.settings.get("appendfsync"), "everysec");
        assert_eq!(plan.core_count, Some(3));
        assert_eq!(plan.data_directory, Path::new("/tmp/x"));
    }

    #[test]
    fn an_equals_sign_will_do() {
        assert_eq!(plan("--port=7001").settings.get("port"), "7001");
    }

    #[test]
    fn nothing_at_all_is_a_server_with_defaults() {
        let plan = plan("");
        assert_eq!(plan.data_directory, Path::new("holdfast-data"));
        assert_eq!(plan.settings.get("port"), "6379");
        assert_eq!(plan.settings.get("appendfsync"), "always");
    }

    #[test]
    fn saves_of_one_source_count_together_and_replace_those_before() {
        assert_eq!(plan("--save 900 1 --save 300 10").settings.get("save"), "900 1 300 10");
        let path = file("save", "save 60 5\nsave 30 7\n");
        assert_eq!(plan(&format!("--config {}", path.display())).settings.get("save"), "60 5 30 7");
        assert_eq!(plan(&format!("--save 1 2 --config {}", path.display())).settings.get("save"), "1 2");
        fs::remove_file(path).expect("the file is there");
    }

    #[test]
    fn the_command_line_has_the_last_word() {
        let path = file("last-word", "# a comment\n\n  port 7100\nrequirepass \"a b\"\n");
        let plan = plan(&format!("{} --port 7200", path.display()));
        assert_eq!(plan.settings.get("port"), "7200");
        assert_eq!(plan.settings.get("requirepass"), "a b");
        assert_eq!(plan.config_file, Some(path.clone()));
        fs::remove_file(path).expect("the file is there");
    }

    #[test]
    fn a_password_may_stand_in_a_file_of_its_own() {
        let path = file("password", "two words\n");
        assert_eq!(plan(&format!("--requirepass-file {}", path.display())).settings.get("requirepass"), "two words");
        for wrong in ["", "\n", "one\ntwo\n"] {
            fs::write(&path, wrong).expect("a temporary file");
            let told = complaint(&format!("--requirepass-file {}", path.display()));
            assert!(told.ends_with("needs a password in one line"), "{told}");
        }
        fs::remove_file(&path).expect("the file is there");
        assert!(complaint(&format!("--requirepass-file {}", path.display())).contains("No such file"));
    }

    #[test]
    fn files_include_files_but_not_without_end() {
        let inner = file("inner", "maxclients 77\n");
        let outer = file("outer", &format!("include {}\n", inner.display()));
        assert_eq!(plan(&format!("--config {}", outer.display())).settings.get("maxclients"), "77");
        fs::write(&inner, format!("include {}\n", outer.display())).expect("a temporary file");
        assert!(complaint(&format!("--config {}", outer.display())).contains("without end"));
        fs::remove_file(inner).expect("the file is there");
        fs::remove_file(outer).expect("the file is there");
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_text() {
        let path = file("mistake", "port 1\nmaxclient 5\n");
        let told = complaint(&format!("--config {}", path.display()));
        assert_eq!(
            told,
            format!(
                "{}, line 2: 'maxclient 5': Unknown option 'maxclient'; did you mean 'maxclients'?",
                path.display()
            )
        );
        fs::write(&path, "port \"1\n").expect("a temporary file");
        let told = complaint(&format!("--config {}", path.display()));
        assert_eq!(told, format!("{}, line 1: 'port \"1': unbalanced quotes in configuration line", path.display()));
        fs::remove_file(path).expect("the file is there");
    }

    #[test]
    fn a_data_directory_is_a_directory_or_missing() {
        let folder = std::env::temp_dir().join(format!("holdfast-no-folder-{}", std::process::id()));
        assert_eq!(check_folder(&folder), Ok(()));
        assert_eq!(check_folder(&std::env::temp_dir()), Ok(()));
        fs::write(&folder, "").expect("a temporary file");
        for (path, why) in [(folder.clone(), "this is not"), (folder.join("data"), "a part of this path is not")] {
            let told = check_folder(&path).expect_err("no directory");
            assert!(told.contains(why) && told.contains("--data-dir"), "{told}");
        }
        fs::remove_file(folder).expect("the file is there");
    }

    #[test]
    fn mistakes_on_the_command_line_are_told_as_well() {
        let cases = [
            ("--no-such 1", "the command line: '--no-such 1': Unknown option 'no-such'"),
            ("--data-dr x", "the command line: '--data-dr x': Unknown option 'data-dr'; did you mean 'data-dir'?"),
            ("--tokn x", "the command line: '--tokn x': Unknown option 'tokn'; did you mean 'token'?"),
            ("--port", "the command line: '--port': needs a value"),
            ("--cores 0", "the command line: '--cores 0': needs a number from 1 to 1024"),
            ("--data-dir", "the command line: '--data-dir': needs a value"),
            ("-p 1", "the command line: '-p': Unknown option; those of serve begin with two dashes, as in --port"),
            ("--config a b", "the command line: '--config a b': needs the name of a file"),
        ];
        for (line, expected) in cases {
            assert_eq!(complaint(line), expected);
        }
    }
}
