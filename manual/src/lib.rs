//! Manual pages, made from the command lines that clap parses.
//!
//! clap_mangen writes one page for each command. Here a program has one page with a section for
//! each of its commands, so that a reader can search all of it.

use std::io::{self, Write};

use clap::{Arg, Command};
use clap_mangen::Man;

/// The lines that the crate `roff` writes at the beginning of every part.
const PREAMBLE: [&str; 2] = [".ie \\n(.g .ds Aq \\(aq", ".el .ds Aq '"];

/// Writes the page of a program for this section of the manual, such as `1`.
///
/// # Errors
/// When `output` cannot be written.
pub fn write(program: Command, section: &str, output: &mut dyn Write) -> io::Result<()> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let version = program.get_version().unwrap_or_default();
    let source = format!("{} {version}", program.get_name());
    let man = Man::new(program.clone()).section(section).source(source);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    write_commands(&program, &mut page)?;
    if program.get_after_help().is_some() {
        man.render_extra_section(&mut page)?;
    }
    let page = String::from_utf8_lossy(&page).into_owned();
    let lines = page.lines().filter(|line| !PREAMBLE.contains(line));
    for line in PREAMBLE.into_iter().chain(lines) {
        writeln!(output, "{line}")?;
    }
    Ok(())
}

/// Writes a section for each command of this one, and for theirs.
fn write_commands(parent: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    for command in parent.get_subcommands().filter(|one| !one.is_hide_set()) {
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
        writeln!(page, ".SH \"{}\"", name.replace('-', "\\-"))?;
        let man = Man::new(without_help(command.clone()));
        let mut parts = Vec::new();
        man.render_description_section(&mut parts)?;
        man.render_synopsis_section(&mut parts)?;
        man.render_options_section(&mut parts)?;
        if command.get_after_help().is_some() {
            man.render_extra_section(&mut parts)?;
        }
        let parts = String::from_utf8_lossy(&parts).replace(".SH DESCRIPTION\n", "");
        page.extend(parts.replace("\n.SH ", "\n.SS ").bytes());
        write_commands(command, page)?;
    }
    Ok(())
}

/// Hides the option `--help`, which is on the page once, for the program.
fn without_help(command: Command) -> Command {
    let is_help = |option: &Arg| option.get_id() == "help";
    if command.get_arguments().any(is_help) {
        command.mut_arg("help", |help| help.hide(true))
    } else {
        command
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    #[test]
    fn a_page_has_all_commands_but_hidden_ones() {
        let leaf = Command::new("fly").about("Take off").arg(
            Arg::new("height")
                .long("height")
                .help("Fly at this height, in metres"),
        );
        let program = Command::new("bird")
            .version("1.2")
            .about("A bird")
            .after_help("Examples:\n  bird wing fly")
            .subcommand(Command::new("wing").about("Use the wings").subcommand(leaf))
            .subcommand(Command::new("secret").hide(true));
        let mut page = Vec::new();
        super::write(program, "6", &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        let lines: Vec<_> = page.lines().collect();
        for line in [
            ".TH bird 6  \"bird 1.2\" ",
            "bird \\- A bird",
            ".SH \"bird wing\"",
            ".SH \"bird wing fly\"",
            "Take off",
            ".SS SYNOPSIS",
            "Fly at this height, in metres",
            "  bird wing fly",
        ] {
            assert!(lines.contains(&line), "no {line:?} in\n{page}");
        }
        for once in [".ie", "Print help"] {
            assert_eq!(page.matches(once).count(), 1, "{once} in\n{page}");
        }
        // Only the program's own section has a page of its own that others can name.
        assert!(!page.contains("secret") && !page.contains("(6)"), "{page}");
    }
}
