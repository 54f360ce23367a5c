//! Where virtual time went in a guest's kernel: the counts of `lab/vtime/profile.c`, by function, and
//! those of `tasks.c`, by task.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Name of the plugin's counts in the folder of a run.
pub(crate) const COUNTS: &str = "profile";

/// The address that stands for all of user space, and the one that stands for no known address.
const USER_SPACE: u64 = 1;
const UNKNOWN: u64 = 0;

/// Functions in a printed table.
const PRINTED: usize = 40;

/// Tasks in a printed table.
const PRINTED_TASKS: usize = 10;

/// Name of the tasks that run while a CPU is idle, one for each CPU.
const IDLE: &str = "swapper";

/// Instructions and stalls since the machine's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// By the address where the block begins that took them.
    blocks: BTreeMap<u64, Cost>,
    /// By the name of the task that took them.
    tasks: BTreeMap<String, Cost>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cost {
    instructions: u64,
    entries: u64,
    stall_ps: u64,
    lines_taken: u64,
    lines_shared: u64,
}

impl Cost {
    /// Adds the texts of instructions and of picoseconds of stalls.
    fn add(&mut self, instructions: &str, stall_ps: &str) -> Result<()> {
        self.instructions += instructions.parse::<u64>().context("read instructions")?;
        self.stall_ps += stall_ps.parse::<u64>().context("read a stall")?;
        Ok(())
    }

    /// Picoseconds on a CPU of that speed.
    fn time_ps(&self, mips: f64) -> f64 {
        self.instructions as f64 * 1e6 / mips + self.stall_ps as f64
    }
}

/// Returns what was added to each sum since earlier ones.
fn added<K: Ord + Clone>(now: &BTreeMap<K, Cost>, before: &BTreeMap<K, Cost>) -> BTreeMap<K, Cost> {
    let costs = now.iter().map(|(key, now)| {
        let was = before.get(key).copied().unwrap_or_default();
        let cost = Cost {
            instructions: now.instructions.saturating_sub(was.instructions),
            entries: now.entries.saturating_sub(was.entries),
            stall_ps: now.stall_ps.saturating_sub(was.stall_ps),
            lines_taken: now.lines_taken.saturating_sub(was.lines_taken),
            lines_shared: now.lines_shared.saturating_sub(was.lines_shared),
        };
        (key.clone(), cost)
    });
    costs.collect()
}

impl Counts {
    /// Reads what the plugin wrote.
    ///
    /// # Errors
    /// When the file cannot be read or is malformed.
    pub(crate) fn read(path: &Path) -> Result<Counts> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the profile {}", path.display()))?;
        Counts::parse(&text).with_context(|| format!("the profile {} is malformed", path.display()))
    }

    /// Adds up the lines of all CPUs: CPU, address, instructions, entries, picoseconds of stalls,
    /// cache lines taken, cache lines shared. A line of a task begins with "task", and has its name
    /// at the end.
    fn parse(text: &str) -> Result<Counts> {
        let mut counts = Counts::default();
        for line in text.lines() {
            if let Some(task) = line.strip_prefix("task ") {
                counts.add_task(task)?;
                continue;
            }
            let words: Vec<&str> = line.split(' ').collect();
            let [_, address, instructions, entries, stall_ps, taken, shared] = words[..] else {
                anyhow::bail!("not seven words: {line:?}");
            };
            let address = u64::from_str_radix(address, 16).context("read an address")?;
            let cost = counts.blocks.entry(address).or_default();
            cost.add(instructions, stall_ps)?;
            cost.entries += entries.parse::<u64>().context("read entries")?;
            cost.lines_taken += taken.parse::<u64>().context("read lines taken")?;
            cost.lines_shared += shared.parse::<u64>().context("read lines shared")?;
        }
        Ok(counts)
    }

    /// Adds the line of a task: CPU, instructions, picoseconds of stalls, name.
    fn add_task(&mut self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let [_, instructions, stall_ps, name] = words[..] else {
            anyhow::bail!("not a task: {line:?}");
        };
        let name = match name {
            "" => "(elsewhere)",
            name if name.split('/').next() == Some(IDLE) => "(idle)",
            name => name,
        };
        let cost = self.tasks.entry(name.to_string()).or_default();
        cost.add(instructions, stall_ps)
    }

    /// Returns what was added since an earlier reading.
    #[must_use]
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            blocks: added(&self.blocks, &before.blocks),
            tasks: added(&self.tasks, &before.tasks),
        }
    }
}

/// A guest's kernel functions by address, from its `/proc/kallsyms`.
#[derive(Debug, Clone)]
pub struct Symbols(Vec<(u64, String)>);

impl Symbols {
    /// Reads the text of `/proc/kallsyms`, which lists BPF programs after they were loaded.
    #[must_use]
    pub fn parse(kallsyms: &str) -> Symbols {
        let mut symbols: Vec<_> = kallsyms.lines().filter_map(symbol).collect();
        symbols.sort();
        Symbols(symbols)
    }

    /// Returns the function that an address is in, and whether it begins there.
    fn function(&self, address: u64) -> (&str, bool) {
        match address {
            UNKNOWN => return ("(elsewhere)", false),
            USER_SPACE => return ("(user space)", false),
            _ => {}
        }
        let after = self.0.partition_point(|(begin, _)| *begin <= address);
        let before = after.checked_sub(1).and_then(|index| self.0.get(index));
        before.map_or(("(unknown)", false), |(begin, name)| {
            (name, *begin == address)
        })
    }
}

/// Reads a line of `/proc/kallsyms`. A BPF program is named without its tag.
fn symbol(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
    let name = words.next()?;
    let of_program = name.strip_prefix("bpf_prog_").and_then(|rest| {
        let (_tag, name) = rest.split_once('_')?;
        Some(format!("{name} [bpf]"))
    });
    is_code.then(|| (address, of_program.unwrap_or_else(|| name.to_string())))
}

/// Where virtual time went, by function, the longest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Instructions of all functions.
    pub instructions: u64,
    /// Virtual nanoseconds that all functions waited for memory.
    pub stall_ns: u64,
    /// All functions that were seen.
    pub functions: Vec<Function>,
    /// All tasks that were seen, those of one name together, the one that stalls longest first.
    pub tasks: Vec<Task>,
}

/// The tasks of one name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Their name as the kernel has it, in up to 15 bytes; the idle tasks of all CPUs are one.
    pub name: String,
    /// Their part of all tasks' time, percent.
    pub percent: f64,
    /// Instructions, those of interrupts that came meanwhile included.
    pub instructions: u64,
    /// Virtual nanoseconds that they waited for memory.
    pub stall_ns: u64,
}

/// A function of the guest's kernel, or a BPF program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Its symbol; all of user space is one function.
    pub name: String,
    /// Its part of all functions' time, percent.
    pub percent: f64,
    /// How often its first block was entered.
    pub calls: u64,
    /// Instructions that it executed, those of its callees not included.
    pub instructions: u64,
    /// Virtual nanoseconds that it waited for memory.
    pub stall_ns: u64,
    /// Cache lines that it wrote while another CPU had them; 0 on a machine without a memory model.
    pub lines_taken: u64,
    /// Cache lines that it read from another CPU's caches; 0 on a machine without a memory model.
    pub lines_shared: u64,
}

impl Profile {
    /// Adds up counts by function. `mips`: the speed of a CPU, by which instructions become time.
    #[must_use]
    pub fn new(counts: &Counts, symbols: &Symbols, mips: f64) -> Profile {
        let mut by_name: BTreeMap<&str, Cost> = BTreeMap::new();
        for (address, cost) in &counts.blocks {
            let (name, is_begin) = symbols.function(*address);
            let sum = by_name.entry(name).or_default();
            // Of a sum by function, the entries are those of its first block.
            sum.entries += if is_begin { cost.entries } else { 0 };
            sum.instructions += cost.instructions;
            sum.stall_ps += cost.stall_ps;
            sum.lines_taken += cost.lines_taken;
            sum.lines_shared += cost.lines_shared;
        }
        let time = |cost: &Cost| cost.time_ps(mips);
        let all: f64 = by_name.values().map(time).sum();
        let mut functions: Vec<_> = by_name
            .iter()
            .filter(|(_, cost)| time(cost) > 0.0)
            .map(|(name, cost)| Function {
                name: (*name).to_string(),
                percent: 100.0 * time(cost) / all,
                calls: cost.entries,
                instructions: cost.instructions,
                stall_ns: cost.stall_ps / 1000,
                lines_taken: cost.lines_taken,
                lines_shared: cost.lines_shared,
            })
            .collect();
        functions.sort_by(|a, b| b.percent.total_cmp(&a.percent));
        Profile {
            instructions: functions.iter().map(|f| f.instructions).sum(),
            stall_ns: functions.iter().map(|f| f.stall_ns).sum(),
            functions,
            tasks: tasks(&counts.tasks, mips),
        }
    }

    /// Returns a function by its name, if it was seen.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }
}

/// Returns the tasks that took any time, in the order of their stalls.
fn tasks(counts: &BTreeMap<String, Cost>, mips: f64) -> Vec<Task> {
    let all: f64 = counts.values().map(|cost| cost.time_ps(mips)).sum();
    let mut tasks: Vec<_> = counts
        .iter()
        .filter(|(_, cost)| cost.time_ps(mips) > 0.0)
        .map(|(name, cost)| Task {
            name: name.clone(),
            percent: 100.0 * cost.time_ps(mips) / all,
            instructions: cost.instructions,
            stall_ns: cost.stall_ps / 1000,
        })
        .collect();
    tasks.sort_by_key(|task| std::cmp::Reverse((task.stall_ns, task.instructions)));
    tasks
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::from(
            "time %     calls  instructions  each  stall us  lines taken   shared  function\n",
        );
        for function in self.functions.iter().take(PRINTED) {
            let each = function.instructions.checked_div(function.calls);
            writeln!(
                text,
                "{:6.2}  {:8}  {:12}  {:>4}  {:8}  {:11}  {:7}  {}",
                function.percent,
                function.calls,
                function.instructions,
                each.map_or(String::new(), |each| each.to_string()),
                function.stall_ns / 1000,
                function.lines_taken,
                function.lines_shared,
                function.name
            )?;
        }
        let rest = self.functions.len().saturating_sub(PRINTED);
        if rest > 0 {
            writeln!(text, "and {rest} more functions")?;
        }
        text.push_str("time %  instructions  stall us  task\n");
        for task in self.tasks.iter().take(PRINTED_TASKS) {
            writeln!(
                text,
                "{:6.2}  {:12}  {:8}  {}",
                task.percent,
                task.instructions,
                task.stall_ns / 1000,
                task.name
            )?;
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "\
ffffffff81000000 T _text
ffffffff81000100 T schedule
ffffffff81000180 d a_table
ffffffff81000200 t pick_next_task
ffffffffc0001000 t bpf_prog_0123456789abcdef_magpie_dispatch\t[bpf]
";

    #[test]
    fn costs_count_for_the_function_that_an_address_is_in() {
        let text = "0 1 10 2 0 0 0\n0 ffffffff81000100 60 6 0 3 4\n\
                    0 ffffffff81000101 40 4 0 1 0\n1 ffffffff810001ff 100 50 50000 2 2\n\
                    1 ffffffffc0001000 190 19 0 7 5\n1 0 100 9 0 0 0\n";
        let before = Counts::parse("0 ffffffffc0001000 90 9 0 6 5\n").unwrap();
        let counts = Counts::parse(text).unwrap().since(&before);
        let profile = Profile::new(&counts, &Symbols::parse(KALLSYMS), 1000.0);
        let rows: Vec<_> = profile
            .functions
            .iter()
            .map(|f| {
                let lines = (f.lines_taken, f.lines_shared);
                (f.name.as_str(), f.calls, f.instructions, f.stall_ns, lines)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("schedule", 6, 200, 50, (6, 6)),
                ("(elsewhere)", 0, 100, 0, (0, 0)),
                ("magpie_dispatch [bpf]", 10, 100, 0, (1, 0)),
                ("(user space)", 0, 10, 0, (0, 0)),
            ]
        );
        assert!((profile.functions[0].percent - 100.0 * 250.0 / 460.0).abs() < 1e-9);
    }

    #[test]
    fn tasks_are_in_the_order_of_their_stalls() {
        let text = "0 1 10 2 0 0 0\ntask 0 500 3000 a b\ntask 1 500 0 a b\ntask 0 100 4000 c\n\
                    task 0 7 2000 swapper/0\ntask 1 7 2000 swapper/1\ntask 1 0 0 \n";
        let before = Counts::parse("task 0 100 1000 a b\n").unwrap();
        let counts = Counts::parse(text).unwrap().since(&before);
        let profile = Profile::new(&counts, &Symbols::parse(KALLSYMS), 1000.0);
        let rows: Vec<_> = profile
            .tasks
            .iter()
            .map(|t| (t.name.as_str(), t.instructions, t.stall_ns))
            .collect();
        assert_eq!(rows, [("c", 100, 4), ("(idle)", 14, 4), ("a b", 900, 2)]);
    }

    #[test]
    fn a_malformed_line_is_an_error() {
        assert!(Counts::parse("0 ffff 1 1\n").is_err());
        assert!(Counts::parse("0 wrong 1 1 1\n").is_err());
        assert!(Counts::parse("task 0 1\n").is_err());
    }
}
