//! `image`: an OCI image of the server, made without a container engine.
//!
//! The image holds the program, the libraries of C that it is linked with, and nothing else: no shell, no package
//! manager. It runs as a user without rights on a root file system that can be read only. It is the same, byte for
//! byte, for the same binary, libraries and commit. Source of the layout: the OCI image specification, version 1.0.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::needs;
use crate::package::{Build, put, told};
use crate::process::run;

/// Number of the user and the group that the server runs as.
const USER: u32 = 10_001;

/// Folders that a container engine or the administrator mounts something on.
const FOLDERS: &[(&str, u32)] =
    &[("dev", 0o755), ("etc", 0o755), ("proc", 0o555), ("run", 0o755), ("sys", 0o555), ("tmp", 0o1777)];

/// Names of machines are asked of files first; the libraries of C look here for that.
const NAME_SERVICE: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

/// Starts a server within the root file system, asks it, ends it, and starts it again on the same data. Nothing but
/// `/data` and `/tmp` can be written to.
const TRIAL: &str = r#"
set -eu
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
mount -t tmpfs -o mode=0777 tmpfs "$ROOT/data"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmpfs "$ROOT/dev"
for device in null urandom; do
    touch "$ROOT/dev/$device"
    mount --bind "/dev/$device" "$ROOT/dev/$device"
done
mount -o remount,bind,ro "$ROOT"
inside() { chroot $AS "$ROOT" "$@"; }
start() {
    exec chroot $AS "$ROOT" /usr/bin/holdfast serve --bind 127.0.0.1 --port "$PORT" --cluster-port "$CLUSTER_PORT" \
        --cores 2 --data-dir /data --logfile /tmp/log &
    server=$!
    for _ in $(seq 1200); do
        if inside /usr/bin/holdfast health --port "$PORT" --quiet 2>/dev/null; then return; fi
        sleep 0.1
    done
    cat "$ROOT/tmp/log"
    echo "the server within the image does not serve" >&2
    exit 1
}
stop() { kill -TERM "$server"; wait "$server"; }
start
test "$(redis-cli -p "$PORT" SET kept yes)" = OK
stop
start
test "$(redis-cli -p "$PORT" GET kept)" = yes
if inside /usr/bin/holdfast man /usr 2>/dev/null; then
    echo "the root file system of the image could be written to" >&2
    exit 1
fi
stop
"#;

/// Runs `image`.
pub fn run_verb(options: &[String]) -> Result<()> {
    let (is_tried, options): (Vec<&String>, Vec<&String>) = options.iter().partition(|word| *word == "--try");
    let options: Vec<String> = options.into_iter().cloned().collect();
    let build = Build::of("image", &options)?;
    let image = make(&build)?;
    if !is_tried.is_empty() {
        ensure!(build.machine.is_here(), "--try runs the program, which is for {}", build.machine.architecture);
        try_out(&image.root)?;
    }
    println!("{}", image.archive.display());
    Ok(())
}

/// What is made.
pub struct Image {
    /// The image, for container engines.
    pub archive: PathBuf,
    /// Its root file system.
    pub root: PathBuf,
}

/// Makes an image.
///
/// # Errors
/// If a program that packs is missing, or fails.
pub fn make(build: &Build) -> Result<Image> {
    let stage = crate::target().join("package").join(format!("{}-image", build.name()));
    if stage.exists() {
        fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))?;
    }
    let (root, data) = (stage.join("root"), stage.join("data"));
    fill(build, &root)?;
    fs::create_dir_all(data.join("data"))?;
    fs::set_permissions(data.join("data"), fs::Permissions::from_mode(0o750))?;
    let archive = crate::target().join("package").join(format!("{}.oci.tar", build.name()));
    Layout { build, folder: stage.join("oci") }.write(&[(&root, 0), (&data, USER)], &archive)?;
    Ok(Image { archive, root })
}

/// Makes an image of this program and tries it, where the system lets a process have namespaces of its own.
///
/// # Errors
/// If the image cannot be made or does not work.
pub fn test(binary: &Path) -> Result<()> {
    let mut options = vec!["--binary".to_owned(), binary.display().to_string()];
    let has_namespaces = unshare()?.arg("true").output().is_ok_and(|output| output.status.success());
    if has_namespaces {
        options.push("--try".to_owned());
    } else {
        eprintln!("this system gives processes no namespaces: the image is made, and its server not started");
    }
    run_verb(&options)
}

/// Runs what is said behind it as root of namespaces, which gives it no more rights outside than before.
fn unshare() -> Result<Command> {
    let mut command = Command::new("unshare");
    command.args(if is_root()? { &["--mount"][..] } else { &["--user", "--map-root-user", "--mount"] });
    command.args(["--pid", "--fork", "--kill-child"]);
    Ok(command)
}

fn is_root() -> Result<bool> {
    Ok(told(Command::new("id").arg("-u"))? == "0")
}

/// Makes the root file system.
fn fill(build: &Build, root: &Path) -> Result<()> {
    let program = root.join("usr/bin/holdfast");
    put(&build.binary, &program, 0o755)?;
    run(Command::new(build.machine.tool("strip")).arg("--strip-debug").arg(&program))?;
    for (library, place) in build.machine.libraries(&build.binary)? {
        put(&library, &root.join(place.strip_prefix("/").context("a library has a whole path")?), 0o755)?;
    }
    for (folder, mode) in FOLDERS {
        fs::create_dir_all(root.join(folder))?;
        fs::set_permissions(root.join(folder), fs::Permissions::from_mode(*mode))?;
    }
    // Somebody mounts the data here who uses the paths of the packages.
    fs::create_dir_all(root.join("var/lib"))?;
    symlink("/data", root.join("var/lib/holdfast"))?;
    let users = format!("root:x:0:0::/:/sbin/nologin\nholdfast:x:{USER}:{USER}::/data:/sbin/nologin\n");
    fs::write(root.join("etc/passwd"), users)?;
    fs::write(root.join("etc/group"), format!("root:x:0:\nholdfast:x:{USER}:\n"))?;
    fs::write(root.join("etc/nsswitch.conf"), NAME_SERVICE)?;
    put(&crate::root().join("LICENSE"), &root.join("usr/share/doc/holdfast/copyright"), 0o644)
}

/// An image in the making.
struct Layout<'a> {
    build: &'a Build,
    folder: PathBuf,
}

/// A file of the image.
struct Blob {
    digest: String,
    size_bytes: u64,
}

impl Layout<'_> {
    /// Packs each folder, with the number of the user it belongs to, as a layer.
    fn write(&self, layers: &[(&Path, u32)], archive: &Path) -> Result<()> {
        fs::create_dir_all(self.folder.join("blobs/sha256"))?;
        let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
        for (folder, user) in layers {
            let tar = self.folder.join("layer.tar");
            self.pack(folder, *user, &tar)?;
            unpacked.push(digest(&tar)?);
            run(Command::new("gzip").args(["--no-name", "--best", "--force"]).arg(&tar))?;
            packed.push(self.keep(&self.folder.join("layer.tar.gz"))?);
        }
        let config = self.keep_text(&config(self.build, &unpacked))?;
        let manifest = self.keep_text(&manifest(&config, &packed))?;
        fs::write(self.folder.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}")?;
        fs::write(self.folder.join("index.json"), index(self.build, &manifest))?;
        self.pack(&self.folder, 0, archive)
    }

    fn pack(&self, folder: &Path, user: u32, to: &Path) -> Result<()> {
        run(Command::new("tar")
            .args(["--create", "--sort=name", "--format=ustar", "--numeric-owner"])
            .args([format!("--owner={user}"), format!("--group={user}"), format!("--mtime=@{}", self.build.moment)])
            .arg("--exclude=./layer.tar")
            .arg("--file")
            .arg(to)
            .args(["--directory".as_ref(), folder.as_os_str(), ".".as_ref()]))
    }

    fn keep_text(&self, text: &str) -> Result<Blob> {
        let path = self.folder.join("text");
        fs::write(&path, text)?;
        self.keep(&path)
    }

    /// Gives a file the name of its content.
    fn keep(&self, path: &Path) -> Result<Blob> {
        let digest = digest(path)?;
        let size_bytes = fs::metadata(path)?.len();
        fs::rename(path, self.folder.join("blobs/sha256").join(&digest))?;
        Ok(Blob { digest, size_bytes })
    }
}

/// SHA-256, in hexadecimal digits.
fn digest(path: &Path) -> Result<String> {
    let text = told(Command::new("sha256sum").arg(path))?;
    text.split_whitespace().next().map(str::to_owned).context("sha256sum says nothing")
}

fn config(build: &Build, unpacked: &[String]) -> String {
    let layers: Vec<String> = unpacked.iter().map(|digest| format!("\"sha256:{digest}\"")).collect();
    format!(
        "{{\"created\":\"{created}\",\"architecture\":\"{architecture}\",\"os\":\"linux\",\"config\":{{\
         \"User\":\"{USER}:{USER}\",\"ExposedPorts\":{{\"6379/tcp\":{{}},\"9121/tcp\":{{}},\"16379/tcp\":{{}}}},\
         \"Env\":[\"PATH=/usr/bin\"],\"Entrypoint\":[\"/usr/bin/holdfast\"],\
         \"Cmd\":[\"serve\",\"--bind\",\"*\",\"-::*\",\"--data-dir\",\"/data\"],\"Volumes\":{{\"/data\":{{}}}},\
         \"WorkingDir\":\"/data\",\"StopSignal\":\"SIGTERM\",\"Labels\":{{\
         \"org.opencontainers.image.title\":\"holdfast\",\"org.opencontainers.image.version\":\"{version}\",\
         \"org.opencontainers.image.licenses\":\"Apache-2.0\"}}}},\
         \"rootfs\":{{\"type\":\"layers\",\"diff_ids\":[{layers}]}}}}",
        created = build.created,
        architecture = build.machine.architecture,
        version = build.version,
        layers = layers.join(","),
    )
}

fn manifest(config: &Blob, layers: &[Blob]) -> String {
    let of = |blob: &Blob, kind: &str| {
        format!(
            "{{\"mediaType\":\"application/vnd.oci.image.{kind}\",\"digest\":\"sha256:{}\",\"size\":{}}}",
            blob.digest, blob.size_bytes
        )
    };
    let layers: Vec<String> = layers.iter().map(|layer| of(layer, "layer.v1.tar+gzip")).collect();
    format!(
        "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{},\
         \"layers\":[{}]}}",
        of(config, "config.v1+json"),
        layers.join(",")
    )
}

fn index(build: &Build, manifest: &Blob) -> String {
    format!(
        "{{\"schemaVersion\":2,\"manifests\":[{{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\
         \"digest\":\"sha256:{}\",\"size\":{},\"platform\":{{\"architecture\":\"{}\",\"os\":\"linux\"}},\
         \"annotations\":{{\"org.opencontainers.image.ref.name\":\"holdfast:{}\"}}}}]}}",
        manifest.digest, manifest.size_bytes, build.machine.architecture, build.version
    )
}

/// Runs the server in namespaces, on the root file system alone.
fn try_out(root: &Path) -> Result<()> {
    needs::provide_programs()?;
    let port = || -> Result<u16> { Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port()) };
    fs::create_dir_all(root.join("data"))?;
    let mut command = unshare()?;
    command.args(["sh", "-c", TRIAL]);
    command.env("ROOT", root).env("PORT", port()?.to_string()).env("CLUSTER_PORT", port()?.to_string());
    command.env("AS", if is_root()? { format!("--userspec={USER}:{USER}") } else { String::new() });
    let status = command.status().context("unshare, of the package util-linux, is needed")?;
    ensure!(status.success(), "the server of the image does not work: {status}");
    fs::remove_dir(root.join("data"))?;
    eprintln!("the server of the image serves, on a root file system that it cannot write to");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn packaging(file: &str) -> String {
        fs::read_to_string(crate::root().join("packaging").join(file)).expect(file)
    }

    #[test]
    fn images_of_both_kinds_start_the_same_server() {
        let build = Build {
            binary: PathBuf::new(),
            version: "1.2.3".to_owned(),
            native: PathBuf::new(),
            machine: Machine::of(&std::env::current_exe().expect("a program")).expect("it runs"),
            moment: "0".to_owned(),
            created: "1970-01-01T00:00:00Z".to_owned(),
        };
        let config = config(&build, &["0".repeat(64)]);
        let file = packaging("container/Containerfile");
        for (key, line) in [("Entrypoint", "ENTRYPOINT "), ("Cmd", "CMD ")] {
            let words = file.lines().find_map(|text| text.strip_prefix(line)).expect(line).replace(", ", ",");
            assert!(config.contains(&format!("\"{key}\":{words}")), "{key}: {config}");
        }
        assert!(file.contains(&format!("USER {USER}:{USER}\n")));
        assert!(packaging("helm/holdfast/values.yaml").contains(&format!("runAsUser: {USER}\n")));
    }

    /// Names of all values, as in `image.tag`: keys of a YAML file that says each in a line of its own.
    fn values(text: &str) -> Vec<String> {
        let mut path: Vec<(usize, &str)> = Vec::new();
        let mut names = Vec::new();
        for line in text.lines() {
            let indent = line.len() - line.trim_start().len();
            let Some((key, _)) = line.trim().split_once(':') else { continue };
            if !key.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                continue;
            }
            path.retain(|(outer, _)| *outer < indent);
            path.push((indent, key));
            names.push(path.iter().map(|(_, key)| *key).collect::<Vec<_>>().join("."));
        }
        names
    }

    #[test]
    fn the_chart_uses_every_value_that_it_declares_and_no_other() {
        let declared = values(&packaging("helm/holdfast/values.yaml"));
        let folder = crate::root().join("packaging/helm/holdfast/templates");
        let files = fs::read_dir(folder).expect("templates").map(|entry| entry.expect("a file").path());
        let text: String = files.map(|path| fs::read_to_string(path).expect("a template")).collect();
        let ends = |at: char| !(at.is_ascii_alphanumeric() || at == '.');
        let used: Vec<&str> =
            text.split(".Values.").skip(1).map(|rest| rest.split(ends).next().unwrap_or_default()).collect();
        for name in &used {
            assert!(declared.iter().any(|declared| declared == name), "values.yaml declares no {name}");
        }
        for name in &declared {
            let is_used = used.iter().any(|used| {
                let is_within =
                    |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'));
                used == name || is_within(used, name) || is_within(name, used)
            });
            assert!(is_used, "no template uses {name}");
        }
    }

    #[test]
    fn chart_and_compose_file_name_the_version_that_is_built() {
        let version = env!("CARGO_PKG_VERSION");
        let chart = packaging("helm/holdfast/Chart.yaml");
        assert!(chart.contains(&format!("\nversion: {version}\n")) && chart.contains(&format!("\"{version}\"")));
        assert!(packaging("container/compose.yaml").contains(&format!("image: holdfast:{version}\n")));
    }
}
