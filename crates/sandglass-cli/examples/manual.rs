//! Writes the manual pages and the completions of shells into a folder, for a package:
//! `man/*.1`, `bash/sandglass`, `zsh/_sandglass` and `fish/sandglass.fish`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use clap_complete::Shell;

const NAME: &str = "sandglass";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).ok_or("usage: manual FOLDER")?;
    let pages = made(&folder, "man")?;
    clap_mangen::generate_to(sandglass_cli::command_line(), pages)?;
    for (shell, name, file) in [
        (Shell::Bash, "bash", "sandglass"),
        (Shell::Zsh, "zsh", "_sandglass"),
        (Shell::Fish, "fish", "sandglass.fish"),
    ] {
        let mut completions = File::create(made(&folder, name)?.join(file))?;
        let mut command = sandglass_cli::command_line();
        clap_complete::generate(shell, &mut command, NAME, &mut completions);
    }
    Ok(())
}

fn made(folder: &Path, name: &str) -> std::io::Result<PathBuf> {
    let path = folder.join(name);
    fs::create_dir_all(&path)?;
    Ok(path)
}
