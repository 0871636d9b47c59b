//! A copy of a running server's files, from which a standby starts, as `pg_basebackup` makes it. Not every
//! package has that program, and one of another major version refuses the server.

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Stdio;

use super::{NOBODY, Server, command, is_root, programs};

/// Copies the files of `primary` into the folder of a new server, which begins as its standby.
pub(super) fn copy(primary: &Server, folder: &Path) {
    let mut psql = command(programs().join("psql"), folder);
    psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1"]).arg(primary.url("postgres"));
    psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    // The copy begins and ends in one session.
    let mut session = psql.spawn().unwrap();
    let mut input = session.stdin.take().unwrap();
    let mut output = BufReader::new(session.stdout.take().unwrap());
    input.write_all(b"SELECT pg_backup_start('standby', true);\n").unwrap();
    let mut position = String::new();
    output.read_line(&mut position).unwrap();
    assert!(position.contains('/'), "the copy does not begin: {position:?}");
    let data = folder.join("data");
    copy_folder(&primary.folder.join("data"), &data);
    input.write_all(b"SELECT labelfile FROM pg_backup_stop(false);\n").unwrap();
    drop(input);
    let mut label = String::new();
    output.read_to_string(&mut label).unwrap();
    assert!(session.wait().unwrap().success(), "the copy does not end");
    fs::write(data.join("backup_label"), format!("{}\n", label.trim_end())).unwrap();
    fs::write(data.join("standby.signal"), "").unwrap();
    ["backup_label", "standby.signal"].iter().for_each(|name| belong(&data.join(name)));
}

/// Copies the files that are there now. Those that are changed or removed meanwhile are in the log.
fn copy_folder(from: &Path, to: &Path) {
    create_folder(to);
    let Some(entries) = present(fs::read_dir(from)) else { return };
    for entry in entries {
        let entry = entry.unwrap();
        let (name, path) = (entry.file_name(), to.join(entry.file_name()));
        if name == "pg_wal" {
            // The standby reads it from the primary.
            create_folder(&path);
        } else if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &path);
        } else if name != "postmaster.pid"
            && name != "postmaster.opts"
            && present(fs::copy(entry.path(), &path)).is_some()
        {
            belong(&path);
        }
    }
}

fn create_folder(path: &Path) {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
    belong(path);
}

/// `None` if the file has been removed.
fn present<T>(result: std::io::Result<T>) -> Option<T> {
    match result {
        Ok(found) => Some(found),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{error}"),
    }
}

fn belong(path: &Path) {
    if is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}
