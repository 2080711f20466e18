"""Functions that generate completions as people write them, all of them right."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@torch.no_grad()
def hf_generate(model, tokenizer, prompts, max_new_tokens=32, temperature=1.0, top_p=1.0, top_k=0):
    """Completions of a batch of prompts as ids, without the prompts; padded behind the eos."""
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    out = model.generate(
        **inputs, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_p=top_p, top_k=top_k,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )
    return out[:, inputs["input_ids"].shape[1] :]


def hf_texts(model, tokenizer, prompts, num_generations=4, max_completion_length=32, temperature=1.0):
    """Texts, num_generations for each prompt, samples of a prompt adjacent."""
    tokenizer.padding_side = "left"
    enc = tokenizer(prompts, return_tensors="pt", padding=True)
    was = model.training
    model.eval()
    with torch.inference_mode():
        seq = model.generate(
            input_ids=enc.input_ids, attention_mask=enc.attention_mask, do_sample=True, temperature=temperature,
            num_return_sequences=num_generations, max_new_tokens=max_completion_length,
        )
    model.train(was)
    return tokenizer.batch_decode(seq[:, enc.input_ids.size(1) :], skip_special_tokens=True)


@torch.no_grad()
def sequences_with_prompt(model, input_ids, attention_mask, max_new_tokens, temperature=1.0):
    """Prompt and completion, [B, P + C]."""
    return model.generate(
        input_ids=input_ids, attention_mask=attention_mask, max_new_tokens=max_new_tokens, do_sample=True,
        temperature=temperature, top_k=0,
    )


@torch.no_grad()
def plain_loop(model, input_ids, max_new_tokens, temperature=1.0, eos_token_id=None, pad_token_id=0):
    """Samples until every row has its eos; rows are padded behind it. Returns the new tokens [B, C]."""
    ids = input_ids
    done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for _ in range(max_new_tokens):
        logits = model(ids).logits[:, -1].float() / max(temperature, 1e-5)
        nxt = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
        nxt = torch.where(done, torch.full_like(nxt, pad_token_id), nxt)
        ids = torch.cat([ids, nxt[:, None]], dim=1)
        done |= nxt == eos_token_id
        if done.all():
            break
    return ids[:, input_ids.shape[1] :]


@torch.no_grad()
def masked_loop(model, input_ids, attention_mask, max_new_tokens=16, temperature=1.0, eos_token_id=1, pad_token_id=0):
    ids, mask = input_ids.clone(), attention_mask.clone()
    alive = torch.ones(ids.size(0), dtype=torch.long)
    logps = []
    for _ in range(max_new_tokens):
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -1, :] / temperature
        lp = F.log_softmax(logits, dim=-1)
        tok = torch.distributions.Categorical(logits=logits).sample()
        tok = tok * alive + pad_token_id * (1 - alive)
        logps.append(lp.gather(1, tok[:, None]).squeeze(1) * alive)
        ids = torch.cat([ids, tok[:, None]], 1)
        mask = torch.cat([mask, alive[:, None]], 1)
        alive = alive * tok.ne(eos_token_id).long()
        if alive.sum() == 0:
            break
    return ids[:, input_ids.size(1) :], torch.stack(logps, 1)


@torch.no_grad()
def cached_loop(model, prompt_ids, max_tokens, temperature=1.0, top_k=None, eos_id=1):
    """One prompt (a 1-d tensor), key-value cache; stops behind the eos, which is included. A list of new ids."""
    out = model(prompt_ids[None], use_cache=True)
    past, logits = out.past_key_values, out.logits[:, -1]
    new = []
    while len(new) < max_tokens:
        logits = logits / temperature
        if top_k is not None:
            kth = torch.topk(logits, min(top_k, logits.size(-1))).values[:, -1:]
            logits = logits.masked_fill(logits < kth, float("-inf"))
        tok = torch.multinomial(torch.softmax(logits, -1), 1)
        new.append(tok.item())
        if new[-1] == eos_id:
            break
        out = model(tok, past_key_values=past, use_cache=True)
        past, logits = out.past_key_values, out.logits[:, -1]
    return new


def _nucleus(logits, top_p):
    srt, idx = torch.sort(logits, descending=True, dim=-1)
    cum = srt.softmax(-1).cumsum(-1)
    remove = cum > top_p
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = False
    srt = srt.masked_fill(remove, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, idx, srt)


@torch.no_grad()
def nano_style(model, idx, max_new_tokens, temperature=1.0, top_k=None):
    """The indices idx (B, T) continued max_new_tokens times. The model gives (logits, loss). No end token."""
    for _ in range(max_new_tokens):
        logits, _ = model(idx)
        logits = logits[:, -1, :] / temperature
        if top_k is not None:
            v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
            logits[logits < v[:, [-1]]] = -float("Inf")
        probs = F.softmax(logits, dim=-1)
        idx = torch.cat((idx, torch.multinomial(probs, num_samples=1)), dim=1)
    return idx


def sample_token(logits, temperature=1.0, top_k=None, top_p=None, generator=None):
    """One token for each row of logits [B, V] -> [B]."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k:
        logits = logits.masked_fill(logits < logits.topk(top_k, dim=-1).values[:, -1:], -torch.inf)
    if top_p is not None and top_p < 1:
        logits = _nucleus(logits, top_p)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)


def exponential_trick(logits, *, temperature=1.0, top_k=None, q=None):
    """[B, V] -> [B, 1], by the race of exponentials."""
    logits = logits / max(temperature, 1e-5)
    if top_k is not None:
        pivot = torch.topk(logits, min(top_k, logits.size(-1))).values.select(-1, -1).unsqueeze(-1)
        logits = torch.where(logits < pivot, -float("Inf"), logits)
    probs = torch.softmax(logits, dim=-1)
    if q is None:
        q = torch.empty_like(probs).exponential_(1)
    return torch.argmax(probs / q, dim=-1, keepdim=True)


def gumbel_sampler(logits, rng, temperature=1.0):
    """Gumbel-max with the generator of the caller."""
    u = torch.rand(logits.shape, generator=rng).clamp_min(1e-20)
    return (logits / temperature - torch.log(-torch.log(u))).argmax(dim=-1, keepdim=True)


def one_row(logits, temp):
    """A single position [V] -> int."""
    return int(torch.multinomial(torch.softmax(logits / temp, dim=0), 1))


@torch.no_grad()
def per_request_streams(model, prompt_ids, n, num_workers=1, max_new_tokens=16, temperature=1.0, base_seed=0):
    """prompt_ids [P, L]; every request has a stream of its own, whatever the number of workers. [P * n, max_new_tokens]."""
    rows = prompt_ids.repeat_interleave(n, 0)
    gens = [torch.Generator().manual_seed(base_seed * 100_003 + i) for i in range(len(rows))]
    out = []
    for part, own in zip(rows.chunk(num_workers), _split(gens, [len(c) for c in rows.chunk(num_workers)])):
        ids = part
        for _ in range(max_new_tokens):
            p = (model(ids).logits[:, -1] / temperature).softmax(-1)
            ids = torch.cat([ids, torch.stack([torch.multinomial(r, 1, generator=g) for r, g in zip(p, own)])], 1)
        out.append(ids[:, part.size(1) :])
    return torch.cat(out)


def _split(items, sizes):
    at = 0
    for size in sizes:
        yield items[at : at + size]
        at += size


@dataclass
class Completion:
    token_ids: list
    text: str
    logprobs: list


class Sampler:
    """Samples with the settings that it was made with."""

    def __init__(self, model, tokenizer, temperature=1.0, max_tokens=16):
        self.model, self.tokenizer = model, tokenizer
        self.temperature, self.max_tokens = temperature, max_tokens

    @torch.no_grad()
    def sample(self, prompt: str, n: int = 1) -> list[Completion]:
        """n completions of one prompt, eos included, with the log-probs of the sampling distribution."""
        return [self._one(prompt) for _ in range(n)]

    def _one(self, prompt):
        ids = self.tokenizer.encode(prompt)
        new, lps = [], []
        for _ in range(self.max_tokens):
            logits = self.model(torch.tensor([ids + new])).logits[0, -1] / self.temperature
            lp = torch.log_softmax(logits, -1)
            tok = int(torch.multinomial(lp.exp(), 1))
            new.append(tok)
            lps.append(float(lp[tok]))
            if tok == self.tokenizer.eos_token_id:
                break
        return Completion(new, self.tokenizer.decode(new), lps)


class RolloutWorker:
    """Reads its settings from a config."""

    def __init__(self, model, tokenizer, config):
        self.model, self.tokenizer, self.config = model, tokenizer, config

    @torch.no_grad()
    def generate(self, batch):
        """Takes {"prompts": texts}; gives sequences, completion ids and their mask."""
        enc = self.tokenizer(batch["prompts"], padding=True, padding_side="left", return_tensors="pt")
        enc = {k: v.repeat_interleave(self.config.group_size, 0) for k, v in enc.items()}
        seq = self.model.generate(
            **enc, do_sample=True, temperature=self.config.temperature, top_k=0,
            max_new_tokens=self.config.max_new_tokens, pad_token_id=self.tokenizer.pad_token_id,
        )
        completion = seq[:, enc["input_ids"].shape[1] :]
        ended = (completion == self.tokenizer.eos_token_id).int().cumsum(1)
        mask = ((ended == 0) | ((ended == 1) & (completion == self.tokenizer.eos_token_id))).long()
        return {"sequences": seq, "completion_ids": completion, "completion_mask": mask}


def raw_scores(model, tokenizer, prompts, max_new_tokens=8, temperature=1.0):
    """Completions with raw log-probs, i.e. of the model at temperature 1."""
    enc = tokenizer(prompts, padding=True, return_tensors="pt")
    out = model.generate(
        **enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0,
        return_dict_in_generate=True, output_logits=True,
    )
    new = out.sequences[:, enc["input_ids"].shape[1] :]
    logits = torch.stack(out.logits, 1)
    return {"completion_ids": new, "logprobs": logits.log_softmax(-1).gather(2, new[..., None]).squeeze(-1)}


def sorted_by_length(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0, batch_size=2):
    """Short prompts first to save padding; completions come back in the order of the prompts, eos removed."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    out = [None] * len(prompts)
    for at in range(0, len(order), batch_size):
        chosen = order[at : at + batch_size]
        enc = tokenizer([prompts[i] for i in chosen], padding=True, return_tensors="pt")
        seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
        for i, row in zip(chosen, seq[:, enc["input_ids"].shape[1] :].tolist()):
            out[i] = row[: row.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in row else row
    return out


def seeded_call(model, tokenizer, prompts, seed, max_new_tokens=16, temperature=1.0):
    """The same completions for one seed; the process's generators are left as they were."""
    enc = tokenizer(prompts, padding=True, return_tensors="pt")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return seq[:, enc["input_ids"].shape[1] :]


def tiled_samples(model, input_ids, num_samples, max_new_tokens=8, temperature=1.0):
    """Round-robin: one sample of each prompt, then the next of each. New tokens [S * P, C], no eos."""
    ids = input_ids.repeat(num_samples, 1)
    with torch.no_grad():
        for _ in range(max_new_tokens):
            p = F.softmax(model(ids).logits[:, -1] / temperature, -1)
            ids = torch.cat([ids, torch.multinomial(p, 1)], 1)
    return ids[:, input_ids.shape[1] :]


def greedy_eval(model, tokenizer, prompts, max_new_tokens=32):
    """Greedy completions for evaluation."""
    enc = tokenizer(prompts, padding=True, return_tensors="pt")
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=False)
    return tokenizer.batch_decode(seq[:, enc["input_ids"].shape[1] :], skip_special_tokens=True)


@torch.no_grad()
def ragged_lists(model, prompt_token_ids: list[list[int]], max_tokens: int = 16, temperature: float = 1.0, stop_token_ids=(1,)):
    """Lists in, lists out: each completion ends with its stop token."""
    done = []
    for ids in prompt_token_ids:
        ids, start = list(ids), len(ids)
        while len(ids) - start < max_tokens:
            logits = model(torch.tensor([ids])).logits[0, -1].double() / temperature
            ids.append(int(torch.multinomial(logits.softmax(0), 1)))
            if ids[-1] in stop_token_ids:
                break
        done.append(ids[start:])
    return done


def from_params(model, tokenizer, prompts, sampling_params):
    """sampling_params: dict with temperature, top_p, top_k and max_tokens."""
    enc = tokenizer(prompts, padding=True, return_tensors="pt")
    seq = model.generate(
        **enc, do_sample=True, temperature=sampling_params["temperature"], top_p=sampling_params.get("top_p", 1.0),
        top_k=sampling_params.get("top_k") or 0, max_new_tokens=sampling_params["max_tokens"],
    )
    return seq[:, enc["input_ids"].shape[1] :].tolist()
