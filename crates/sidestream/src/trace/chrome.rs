//! Writes the frame of Chrome JSON around any events, and converts times to its unit.

use std::io::{self, BufWriter, Write};

use serde_json::{Value, json};

/// Writes a trace as Chrome JSON, one event per line.
///
/// [`Trace::write_json`](super::Trace::write_json) uses this writer. It is public for crates that write events other
/// than the calls and the work of a run, such as an analysis of a trace.
///
/// # Examples
/// ```
/// use sidestream::trace::{ChromeWriter, us};
///
/// let mut written = Vec::new();
/// let mut writer = ChromeWriter::new(&mut written, &[])?;
/// writer.process(1, "host", 0)?;
/// writer.thread(1, 7, "main")?;
/// writer.event(&serde_json::json!({
///     "ph": "X", "name": "load", "pid": 1, "tid": 7, "ts": us(0), "dur": us(1_500),
/// }))?;
/// writer.finish(|_| Ok(()))?;
/// assert!(serde_json::from_slice::<serde_json::Value>(&written).is_ok());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ChromeWriter<W: Write> {
    out: BufWriter<W>,
    separator: &'static str,
}

impl<W: Write> ChromeWriter<W> {
    /// Begins a trace of devices with these properties, in Kineto's format.
    ///
    /// # Errors
    /// An error of the writer.
    pub fn new(out: W, devices: &[Value]) -> io::Result<ChromeWriter<W>> {
        let mut out = BufWriter::new(out);
        writeln!(out, "{{")?;
        writeln!(out, "\"schemaVersion\": 1,")?;
        writeln!(out, "\"deviceProperties\": {},", json!(devices))?;
        writeln!(out, "\"displayTimeUnit\": \"ms\",")?;
        write!(out, "\"traceEvents\": [")?;
        Ok(ChromeWriter {
            out,
            separator: "\n",
        })
    }

    /// Writes one event.
    ///
    /// # Errors
    /// An error of the writer.
    pub fn event(&mut self, event: &Value) -> io::Result<()> {
        write!(self.out, "{}{event}", self.separator)?;
        self.separator = ",\n";
        Ok(())
    }

    /// Names a process, and sets its position in viewers: lower values of `place` come first.
    ///
    /// # Errors
    /// An error of the writer.
    pub fn process(&mut self, pid: u32, name: &str, place: i64) -> io::Result<()> {
        self.name("process_name", pid, 0, json!({"name": name}))?;
        let place = json!({"sort_index": place});
        self.name("process_sort_index", pid, 0, place)
    }

    /// Names a thread of a process.
    ///
    /// # Errors
    /// An error of the writer.
    pub fn thread(&mut self, pid: u32, tid: u32, name: &str) -> io::Result<()> {
        self.name("thread_name", pid, tid, json!({"name": name}))
    }

    fn name(&mut self, what: &str, pid: u32, tid: u32, args: Value) -> io::Result<()> {
        self.event(
            &json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": us(0),
                           "args": args}),
        )
    }

    /// Ends the list of events; `members` writes further members after it, each preceded by a comma. Viewers ignore
    /// members that they do not know.
    ///
    /// # Errors
    /// An error of the writer.
    pub fn finish(
        mut self,
        members: impl FnOnce(&mut BufWriter<W>) -> io::Result<()>,
    ) -> io::Result<()> {
        write!(self.out, "\n]")?;
        members(&mut self.out)?;
        writeln!(self.out, "\n}}")?;
        self.out.flush()
    }
}

/// Converts nanoseconds to microseconds with exactly three decimals, the unit of Chrome's format.
pub fn us(ns: u64) -> Value {
    let text = format!("{}.{:03}", ns / 1_000, ns % 1_000);
    // Digits with three decimals are a valid JSON number.
    serde_json::from_str(&text).unwrap_or(Value::Null)
}
